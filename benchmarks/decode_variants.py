"""Time the variants of decode beside the plain kernels that their recipes extend: `python -m benchmarks.decode_variants --out FILE`.

64 sequences of which the variant reads as many bytes of K and V as the plain kernel: shorter ones for wider heads, longer ones for a window.  Each variant is
verified against the float64 oracle first.  `over_plain` is the ratio of the times.  Exit status: 0, or 1 if a variant was wrong or above `--limit`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch

import tle_attn
from benchmarks import workloads
from benchmarks.compiling import compile_all
from benchmarks.records import Record, command_line, described
from benchmarks.variants import captured, verified
from benchmarks.watchdog import watch
from tle_attn.build import has_hopper, versions
from tle_attn.report.timing import Timer
from tle_attn.spec import Kernel
from tle_attn.testing import ContiguousDecodeProblem, DecodeProblem
from tle_attn.verify import arguments_of, oracle_options, quant_type

BATCH, TOKENS = 64, 4096
#: (recipe, query tokens)
Plain = tuple[str, int]
#: a variant that reads a part of its keys has sequences this many times as long
SPARSE = 4


def kernel_of(recipe: str, **problem: Any) -> Kernel:
    """The first point of a recipe's axes, with pages of 64 tokens where it has pages."""
    loaded = tle_attn.load(recipe)
    kernel = loaded.kernel(**problem)
    return loaded.kernel(page=workloads.PAGE, **problem) if "block_ids" in kernel.arguments else kernel


def plain_of(recipe: str, variant: Kernel) -> Plain:
    """What the variant's recipe extends, with as many query tokens."""
    return tle_attn.load(recipe).parents[0], variant.problem.query_tokens


def decode_problem(kernel: Kernel) -> tuple[DecodeProblem, dict[str, torch.Tensor]]:
    """A problem of which the kernel reads BATCH * TOKENS * 256 elements for each key/value head, and its further arguments."""
    p = kernel.problem
    tokens = TOKENS * 2 * workloads.HEAD_DIM // (p.head_dim + p.v_dim)
    seen, selected = oracle_options(kernel).get("window"), "selected_tiles" in kernel.arguments
    if seen:
        assert seen == TOKENS, "the window of the library's recipe is as long as a plain sequence"
    tokens *= SPARSE if seen or selected else 1
    paged = "block_ids" in kernel.arguments
    options: dict[str, Any] = {"query_tokens": p.query_tokens, "layout": "NHD", "heads": (p.group, 1), "head_dim": p.head_dim, "value_dim": p.value_dim}
    problem = workloads.decode_problem([tokens] * BATCH, **options, page=workloads.PAGE if paged else tokens, quant=quant_type(kernel))
    if not paged:
        k, v = (cache[problem.block_ids[:, 0].long()] for cache in (problem.k_cache, problem.v_cache))
        rows = torch.arange(BATCH, dtype=torch.int32, device=k.device)[:, None]
        scales = dict.fromkeys(("q_scale", "k_scale", "v_scale")) | problem.scales
        problem = ContiguousDecodeProblem(query_tokens=p.query_tokens, q=problem.q, k_cache=k, v_cache=v, block_ids=rows, kv_lens=problem.kv_lens, **scales)
    given = arguments_of(kernel, problem)
    if selected:
        tiles = torch.arange(0, tokens // 64, SPARSE, dtype=torch.int32, device="cuda")
        given["selected_tiles"] = tiles.expand(BATCH, 1, -1).contiguous()
        given["selected_counts"] = torch.full((BATCH,), len(tiles), dtype=torch.int32, device="cuda")
    return problem, given


def measure(kernel: Kernel, timer: Timer) -> tuple[float, float]:
    """Microseconds, warm and cold, planned before."""
    graph, out = captured(kernel, *decode_problem(kernel))
    if not out.isfinite().all():
        raise AssertionError("the output is not finite")
    return timer.us(graph), timer.us_cold(graph)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode_variants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=[r for r in tle_attn.list_recipes() if r.startswith("variants/decode_")], metavar="RECIPE")
    parser.add_argument("--limit", type=float, default=1.1, help="times of the plain kernel that are too slow")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile")
    parser.add_argument("--out", type=Path, help="write the record here")
    options = parser.parse_args(argv)
    if not has_hopper():
        sys.exit("timing needs an NVIDIA Hopper GPU (compute capability 9.0), and there is none here")
    kernels = {recipe: kernel_of(recipe) for recipe in options.recipes}
    plains = {plain_of(recipe, kernel) for recipe, kernel in kernels.items()}
    compiled: dict[Any, Kernel] = {**kernels, **{plain: kernel_of(plain[0], query_tokens=plain[1]) for plain in plains}}
    compile_all(compiled, options.jobs)
    command = command_line("benchmarks.decode_variants", sys.argv[1:] if argv is None else argv)
    record = Record(described(__doc__), versions(), command)
    timer, failures = Timer(), 0
    plain_times: dict[Plain, tuple[float, float]] = {}
    for recipe, kernel in kernels.items():
        plain = plain_of(recipe, kernel)
        try:
            with watch(recipe, 60):
                error = verified(kernel)
                if plain not in plain_times:
                    plain_times[plain] = measure(compiled[plain], timer)
                us, us_cold = measure(kernel, timer)
        except (tle_attn.errors.TleAttnError, RuntimeError, AssertionError) as failure:
            failures += 1
            print(f"FAILED {recipe}: {failure}", flush=True)
            continue
        plain_us, plain_cold = plain_times[plain]
        row = {"recipe": recipe, "plain": plain[0], "query_tokens": plain[1], "us": us, "us_cold": us_cold, "plain_us": plain_us, "plain_us_cold": plain_cold}
        row |= {"over_plain": us / plain_us, "over_plain_cold": us_cold / plain_cold, "rel_rms": error}
        failures += row["over_plain"] > options.limit
        record.rows.append(row)
        print(f"{recipe}: {us:.1f} us, plain {plain_us:.1f}: {row['over_plain']:.3f} times (cold {row['over_plain_cold']:.3f})", flush=True)
        if options.out:
            record.save(options.out)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
