"""Time the variants of prefill beside the plain kernels: `python -m benchmarks.prefill_variants --out FILE`, or some of them, `--only alibi window`.

Every variant is first run on ragged problems and compared with the float64 oracle (tle_attn.verify).  Then it and the plain kernel of its element type, heads and
head_dim are timed on problems of the same lengths, `us` of one call in a CUDA graph with units planned before (tle_attn/report/timing.py), and `over_plain` is the ratio of
the two.  A window leaves out tiles: `tiles_over_plain` is the share of key tiles that its kernel visits.  Without pages a sequence has as many keys as queries: other
cases are left out.  Exit status: 0, or 1 if a variant was wrong or failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import tle_attn
from benchmarks.compiling import compile_all
from benchmarks.records import Record, command_line, described
from benchmarks.variants import Variant, captured, verified
from benchmarks.watchdog import watch
from tle_attn.build import has_hopper, versions
from tle_attn.report.timing import SPIN_CYCLES, Timer
from tle_attn.spec import Kernel
from tle_attn.verify import arguments_of, prefill_problem_for

#: (queries, keys) of each sequence; query heads
CASES: dict[str, tuple[tuple[int, int], ...]] = {"1 x 8k": ((8192, 8192),), "4 x 2k": ((2048, 2048),) * 4, "2k of 32k": ((2048, 32768),)}
HEADS = 32
UNIT = 128
#: what the plain kernel has of a variant's problem
GEOMETRY = ("head_dim", "value_dim", "group")


def variants(only: list[str]) -> list[Variant]:
    """Every variant of prefill whose name holds one of these texts; all of them for none."""
    names = [name for name in tle_attn.list_recipes() if name.startswith("variants/prefill_")]
    return [Variant(name.removeprefix("variants/"), name) for name in names if not only or any(text in name for text in only)]


def plain_of(kernel: Kernel) -> Kernel:
    """The kernel of the reference family of the same element type and heads."""
    recipe = tle_attn.load(f"hy3/prefill_{kernel.problem.dtype.value}")
    return recipe.set({f"problem.{key}": getattr(kernel.problem, key) for key in GEOMETRY}).kernel()


def visited_tiles(kernel: Kernel, pairs: tuple[tuple[int, int], ...]) -> int:
    """Key tiles that a head's units visit."""
    window, keys_of_tile, tiles = getattr(kernel.mainloop.mask[-1], "window", None), kernel.problem.prefill_keys, 0
    for queries, keys in pairs:
        for row in range(0, queries, UNIT):
            before = keys - queries + row
            first = 0 if window is None else max(0, before + 1 - window) // keys_of_tile
            tiles += -(-min(before + UNIT, keys) // keys_of_tile) - first
    return tiles


def cases_of(kernel: Kernel) -> dict[str, tuple[tuple[int, int], ...]]:
    """The cases that a kernel can be asked."""
    return {case: pairs for case, pairs in CASES.items() if "block_ids" in kernel.arguments or all(queries == keys for queries, keys in pairs)}


def timed(kernel: Kernel, pairs: tuple[tuple[int, int], ...], timer: Timer) -> float:
    """Microseconds of one call on a random problem."""
    problem = prefill_problem_for(kernel, pairs, HEADS // kernel.problem.group, device="cuda", seed=1)
    return timer.us(captured(kernel, problem, arguments_of(kernel, problem))[0])


def measure(variant: Variant, kernel: Kernel, timer: Timer) -> list[dict[str, Any]]:
    """A row for each case; AssertionError if the variant is wrong."""
    error, plain, rows = verified(kernel), plain_of(kernel), []
    for case, pairs in cases_of(kernel).items():
        us, plain_us = (timed(k, pairs, timer) for k in (kernel, plain))
        tiles = visited_tiles(kernel, pairs) / visited_tiles(plain, pairs)
        rows.append({"variant": variant.name, "case": case, "us": us, "plain_us": plain_us, "over_plain": us / plain_us, "tiles_over_plain": tiles, "rel_rms": error})
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefill_variants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="variants whose name holds one of these")
    parser.add_argument("--samples", type=int, default=40, help="replays of which the median counts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile")
    parser.add_argument("--out", type=Path, help="write the record here")
    parser.add_argument("--dry", action="store_true", help="compile and list what would be measured")
    options = parser.parse_args(argv)
    if not options.dry and not has_hopper():
        sys.exit("timing needs an NVIDIA Hopper GPU (compute capability 9.0), and there is none here; --dry does everything else")
    chosen = {variant: variant.kernel() for variant in variants(options.only)}
    facts = compile_all({v.name: k for v, k in chosen.items()} | {f"plain for {v.name}": plain_of(k) for v, k in chosen.items()}, options.jobs)
    failed = {name: result for name, result in facts.items() if isinstance(result, Exception)}
    for name, result in facts.items():
        print(f"FAILED {name}: {result}" if name in failed else f"{name}: {result}")
    if options.dry:
        return 1 if failed else 0
    timer = Timer(options.samples)
    settings = {"cases": CASES, "heads": HEADS, "samples": options.samples, "spin_cycles": SPIN_CYCLES, "compiled": {name: facts[name] for name in facts if name not in failed}}
    record = Record(
        what=described(__doc__), versions=versions(), command=command_line("benchmarks.prefill_variants", sys.argv[1:] if argv is None else argv), settings=settings
    )
    failures = len(failed)
    for variant, kernel in chosen.items():
        if variant.name in failed:
            continue
        try:
            with watch(variant.name, 120):
                rows = measure(variant, kernel, timer)
        except (tle_attn.errors.TleAttnError, RuntimeError, AssertionError) as error:
            failures += 1
            print(f"FAILED {variant.name}: {error}", flush=True)
            continue
        record.rows.extend(rows)
        for row in rows:
            print(f"{row['variant']:28} {row['case']:10} {row['us']:9.1f} us   plain {row['plain_us']:9.1f} us   x {row['over_plain']:.2f}   tiles x {row['tiles_over_plain']:.2f}", flush=True)
        if options.out:
            record.save(options.out)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
