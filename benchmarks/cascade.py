"""Cascades beside plain decode of the same requests: `python -m benchmarks.cascade [--recipe R] [--set KEY=VALUE] [--out FILE]` on a Hopper GPU.

Times of CUDA-graph replays as in `tle_attn.report.timing`, with the planners outside, as one call serves all layers of a step.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

import tle_attn
from benchmarks.records import Record, command_line
from tle_attn.build import versions
from tle_attn.cli.options import read_setting
from tle_attn.recipe import Recipe
from tle_attn.report.timing import Timer, capture
from tle_attn.testing import compare, make_decode_problem

PAGE = 64


@frozen
class Case:
    """`requests` behind one prefix of `prefix` tokens, a multiple of the page, with `suffix` tokens of their own each."""

    requests: int
    prefix: int
    suffix: int
    heads: tuple[int, int] = (8, 1)


CASES = tuple(Case(requests, prefix, suffix) for requests in (8, 32, 64) for prefix, suffix in ((2048, 256), (8192, 256), (8192, 4096), (32768, 1024)))


def measure(recipe: Recipe, case: Case, timer: Timer) -> dict[str, Any]:
    """A row of the record; both results are compared first."""
    problem = make_decode_problem([case.prefix, *[case.suffix] * case.requests], heads=case.heads, page=PAGE, poison=False, device="cuda")
    q, lens = problem.q[1:], problem.kv_lens
    tables = {"prefix_ids": problem.block_ids[:1], "suffix_ids": problem.block_ids[1:], "prefix_lens": lens[:1], "suffix_lens": lens[1:].contiguous()}
    whole_ids = torch.cat([problem.block_ids[:1, : case.prefix // PAGE].expand(case.requests, -1), problem.block_ids[1:]], 1).contiguous()
    whole_lens = lens[1:] + case.prefix
    heads = {"query_heads": case.heads[0], "kv_heads": case.heads[1]}
    plain = tle_attn.plan(recipe, batch=case.requests, **heads)
    cascade = tle_attn.cascade(recipe, groups=[case.requests], **heads)
    plain.schedule(whole_lens, block_ids=whole_ids)
    cascade.schedule(**tables)
    outs = [torch.empty_like(q) for _ in range(2)]

    def run_plain() -> None:
        plain.run(q, problem.k_cache, problem.v_cache, whole_ids, whole_lens, out=outs[0], scheduled=True)

    def run_cascade() -> None:
        cascade.run(q, problem.k_cache, problem.v_cache, **tables, out=outs[1], scheduled=True)

    run_plain()
    run_cascade()
    compare(outs[1], outs[0].double(), rms=5e-3)
    graphs = {"plain": capture(run_plain), "cascade": capture(run_cascade)}
    row = {"requests": case.requests, "prefix": case.prefix, "suffix": case.suffix, "heads": list(case.heads)}
    row |= {f"{name}_us": timer.us(graph) for name, graph in graphs.items()} | {f"{name}_cold_us": timer.us_cold(graph) for name, graph in graphs.items()}
    return row | {"plain_over_cascade": row["plain_us"] / row["cascade_us"], "plain_over_cascade_cold": row["plain_cold_us"] / row["cascade_cold_us"]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cascade", description=__doc__)
    parser.add_argument("--recipe", default="hy3/decode_bf16", help="a bf16 recipe with a task map")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="JSON record")
    arguments = parser.parse_args()
    recipe = tle_attn.load(arguments.recipe).set(dict(map(read_setting, arguments.settings)))
    record = Record("cascade beside plain decode of the same requests, planners outside", versions(), command_line("benchmarks.cascade", sys.argv[1:]))
    timer = Timer()
    for case in CASES:
        record.rows.append(measure(recipe, case, timer))
        print({name: round(value, 2) if isinstance(value, float) else value for name, value in record.rows[-1].items()}, flush=True)
        if arguments.out:
            record.save(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
