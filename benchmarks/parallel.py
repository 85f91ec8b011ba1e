"""Merging across GPUs: `python -m benchmarks.parallel [--out FILE]` on a machine with two or more Hopper GPUs, all of which take part.

A graph holds several exchanges, one after the other, so that ranks that start a little apart cost little; times are those of the slowest rank.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import tle_attn.distributed as parallel
from benchmarks.records import Record, command_line
from tle_attn.build import versions
from tle_attn.report.timing import capture
from tle_attn.testing import compare, make_states_problem

#: (tokens, heads) of a state
SHAPES = ((1, 64), (8, 64), (64, 64), (256, 64), (64, 8))
REPEATS, SAMPLES = 20, 20


def measure(tokens: int, heads: int, scatter: bool) -> dict[str, Any]:
    """A row of the record: microseconds of an exchange on the slowest rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    problem = make_states_problem(ranks, tokens + 1, heads, base="2", device=f"cuda:{rank}")
    out, lse = problem.outs[rank, :-1], problem.lses[rank, :-1]
    exchange = parallel.plan_exchange(tokens=tokens, heads=heads, head_dim=128, base="2", scatter=scatter)
    if exchange.out is not None and exchange.lse is not None:  # as decode would write it
        out, lse = exchange.out.copy_(out), exchange.lse.copy_(lse)
    merged, merged_lse = exchange.run(out, lse)
    share = heads // ranks if scatter else heads
    first = rank * share if scatter else 0
    compare(merged, problem.reference()[0][:-1, first : first + share], rms=3e-3)
    graph = capture(lambda: [exchange.run(out, lse, merged=merged, merged_lse=merged_lse) for _ in range(REPEATS)])
    times = []
    for _ in range(SAMPLES):
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / REPEATS)
    slowest = torch.tensor([statistics.median(times)], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return {"tokens": tokens, "heads": heads, "ranks": ranks, "scatter": scatter, "received_bytes": exchange.received_bytes, "us": float(slowest)}


def worker(rank: int, ranks: int, store: str, out: Path | None, command: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
    record = Record(f"exchange of partial results over NCCL, {REPEATS} in a graph", versions(), command)
    for tokens, heads in SHAPES:
        for scatter in (False, True):
            record.rows.append(measure(tokens, heads, scatter))
            if rank == 0:
                print(record.rows[-1], flush=True)
                if out:
                    record.save(out)
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON record")
    arguments = parser.parse_args()
    ranks = torch.cuda.device_count()
    if ranks < 2:
        print("two GPUs are wanted")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(ranks, f"{folder}/store", arguments.out, command_line("benchmarks.parallel", sys.argv[1:])), nprocs=ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
