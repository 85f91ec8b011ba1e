"""Time decode on random mixes that nobody tuned: `python -m benchmarks.mixes --recipe hy3/decode_bf16 --out FILE`.

KV lengths from 1 to 128 K, their logarithms uniform; every batch size with every number of key/value heads.  The recipe, with its task map, runs beside its
static split (which is batch invariant) and the read floor of the same run.  The two must agree; where the batch is small, the float64 oracle is asked too.
Rows of `static` say what batch invariance costs.  Exit status: 0, or 1 if a mix was wrong or slower than `--limit` times the floor or than the static split.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch

import tle_attn
from benchmarks import floor, workloads
from benchmarks.compiling import compile_all
from benchmarks.records import Record, command_line, described
from benchmarks.watchdog import watch
from tle_attn.build import has_hopper, versions
from tle_attn.report.timing import Timer, capture
from tle_attn.spec import Kernel
from tle_attn.testing import DecodeProblem, relative_rms
from tle_attn.verify import quant_type, tolerance

BATCHES, KV_HEADS = (1, 7, 33, 200, 512), (1, 4, 8)
LONGEST = 128 << 10
#: Bytes of K and V above which a mix is left out: half of an H200's memory, and the caches are copied once on the way.
LARGEST = 40 << 30
#: Tokens times kv heads up to which the oracle is asked.
CHECKED = 1 << 20
#: Floors below this say more of launches than of reading, microseconds.
SHORT = 15.0
#: What is not slower than the static split, the noise of a measurement included.
NOISE = 1.04


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="hy3/decode_bf16", help="name of a library recipe with a task map, or a .toml file")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--kv-heads", nargs="+", type=int, default=KV_HEADS)
    parser.add_argument("--mtp", type=int, default=1, help="query tokens per request")
    parser.add_argument("--seed", type=int, default=20, help="of the lengths")
    parser.add_argument("--limit", type=float, default=1.3, help=f"times of the floor that are too slow, where the floor is above {SHORT:g} us")
    parser.add_argument("--samples", type=int, default=30, help="replays of which the median counts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile")
    parser.add_argument("--out", type=Path, help="write the record here")
    return parser.parse_args(argv)


def lengths_of(batch: int, seed: int) -> list[int]:
    """KV lengths of a mix: the same for every recipe and number of heads."""
    rng = random.Random(f"{seed} {batch}")
    return [max(1, round(math.exp(rng.uniform(0.0, math.log(LONGEST))))) for _ in range(batch)]


def kernels_of(recipe: str, query_tokens: int) -> dict[str, Kernel]:
    """The recipe as it is, and with every sequence cut by its own length alone."""
    group = workloads.HEADS[0] // workloads.HEADS[1]
    planned = tle_attn.load(recipe)
    static = planned.set({"schedule.block": "static_split", "mainloop.batch_invariant": True})
    return {name: r.kernel(query_tokens=query_tokens, group=group, page=workloads.PAGE) for name, r in (("planned", planned), ("static", static))}


def measure(kernel: Kernel, problem: DecodeProblem, timer: Timer) -> tuple[dict[str, Any], torch.Tensor]:
    """(times, output) of a kernel; its output poisoned first."""
    batch, heads = len(problem.kv_lens), problem.k_cache.shape[2]
    plan = tle_attn.plan(kernel, batch=batch, query_heads=heads * kernel.problem.group, kv_heads=heads)
    tensors = (problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)
    out, planned = problem.new_output(), kernel.mainloop.schedule.PLANNED
    plan.run(*tensors, out=out, **problem.scales)
    torch.cuda.synchronize()
    graph = capture(lambda: plan.run(*tensors, out=out, scheduled=planned, **problem.scales))
    times: dict[str, Any] = {"us": timer.us(graph), "us_cold": timer.us_cold(graph)}
    times["us_plan"] = timer.us(capture(lambda: plan.schedule(**problem.lengths))) if planned else None
    return times, out


def verdict(rows: dict[str, dict[str, Any]], limit: float) -> list[str]:
    """What is wrong with a mix; `rows` of both kernels."""
    planned, static = rows["planned"], rows["static"]
    found = []
    if planned["us"] > NOISE * static["us"]:
        found.append(f"slower than the static split ({planned['us']:.1f} against {static['us']:.1f} us)")
    if planned["floor_us"] > SHORT and planned["us"] > limit * planned["floor_us"]:
        found.append(f"{planned['us'] / planned['floor_us']:.2f} times the floor")
    return found


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    if not has_hopper():
        sys.exit("timing needs an NVIDIA Hopper GPU (compute capability 9.0), and there is none here")
    kernels = kernels_of(options.recipe, options.mtp)
    for facts in compile_all(kernels, options.jobs).values():
        if isinstance(facts, Exception):
            raise facts
    timer = Timer(options.samples)
    command = command_line("benchmarks.mixes", sys.argv[1:] if argv is None else argv)
    record = Record(described(__doc__), versions(), command, {"null_graph_us": round(timer.null_graph_us(), 2), "seed": options.seed})
    failures = 0
    problem_type = kernels["planned"].problem
    for batch in options.batches:
        lengths = lengths_of(batch, options.seed)
        for heads in options.kv_heads:
            label = f"batch {batch:3d} kv heads {heads}"
            if 2 * sum(lengths) * heads * problem_type.head_dim * problem_type.dtype.nbytes > LARGEST:
                print(f"{label}: left out, {sum(lengths):,} tokens")
                continue
            problem = workloads.decode_problem(
                lengths, query_tokens=options.mtp, layout="NHD", heads=(heads * problem_type.group, heads), quant=quant_type(kernels["planned"])
            )  # fmt: skip
            read = floor.measure(problem, timer, label)
            allowed, _ = tolerance(kernels["planned"])
            rows, outs = {}, {}
            for name, kernel in kernels.items():
                with watch(f"{name}, {label}", 60):
                    times, outs[name] = measure(kernel, problem, timer)
                rows[name] = {"kernel": name, "batch": batch, "hkv": heads, "tokens": sum(lengths), "longest": max(lengths), **times, "floor_us": read.us, "floor_us_cold": read.us_cold}
            found = verdict(rows, options.limit)
            checked = sum(lengths) * heads <= CHECKED
            references = {"the oracle": problem.reference(p_quant=None)[0]} if checked else {}
            for name, reference in {**references, "the static split": outs["static"]}.items():
                rows["planned"]["rel_rms"] = error = relative_rms(outs["planned"], reference)
                if not error <= allowed:
                    found.append(f"relative RMS error {error:.2e} to {name}, allowed {allowed:.0e}")
            planned, static = rows["planned"], rows["static"]
            print(
                f"{label}  {sum(lengths):9,d} tokens  planned {planned['us']:7.1f}/{planned['us_cold']:7.1f} us  static {static['us']:7.1f}/{static['us_cold']:7.1f}"
                f" = x{static['us'] / planned['us']:.2f}  floor {read.us:7.1f}/{read.us_cold:7.1f} = x{planned['us'] / read.us:.2f}  plan {planned['us_plan']:.1f}"
                f"  {'; '.join(found) or 'ok'}", flush=True,
            )  # fmt: skip
            failures += bool(found)
            record.rows += rows.values()
            if options.out:
                record.save(options.out)
            del problem, outs
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
