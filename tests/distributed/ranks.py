"""What a rank of the tests does; imported by the processes that they start.  Without a GPU over gloo and in emulation, else over NCCL, a GPU for each rank."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from attrs import evolve

import tle_attn
import tle_attn.distributed as parallel
from tle_attn.components.masks.length import Length
from tle_attn.errors import InputError, TleAttnError
from tle_attn.ops import emulate
from tle_attn.spec import Kernel
from tle_attn.testing import DecodeProblem, compare, compare_lse, make_decode_problem, make_states_problem


def start(rank: int, ranks: int, folder: str, test: str, arguments: dict[str, Any], gpu: bool = False) -> None:
    """Run a test of this module as rank `rank`."""
    torch.set_num_threads(1)
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpu else "gloo", init_method=f"file://{Path(folder) / 'store'}", rank=rank, world_size=ranks)
    try:
        with nullcontext() if gpu else emulate():
            globals()[test](rank, ranks, **arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def place() -> dict[str, Any]:
    """Where this rank's tensors are."""
    return {"device": f"cuda:{torch.cuda.current_device()}" if dist.get_backend() == "nccl" else "cpu"}


def target() -> str:
    return "gluon" if dist.get_backend() == "nccl" else "cpu"


def own_heads(tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    share = tensor.shape[1] // ranks
    return tensor[:, rank * share : (rank + 1) * share]


def states(rank: int, ranks: int, *, dtype: str, base: str, seed: int) -> None:
    """Random states, some of them empty, some rows empty on every rank; gathered and scattered, twice over the same plan."""
    exchanges = [parallel.plan_exchange(tokens=5, heads=6, head_dim=128, base=base, dtype=getattr(torch, dtype), scatter=scatter) for scatter in (False, True)]
    whole = ranks * 5 * 6 * (128 * getattr(torch, dtype).itemsize + 4)
    for turn, exchange in enumerate([*exchanges, *exchanges]):
        problem = make_states_problem(ranks, 5, 6, dtype=getattr(torch, dtype), base=base, empty=0.4, seed=seed + turn, **place())
        out, lse = exchange.run(problem.outs[rank], problem.lses[rank])
        expected, expected_lse = problem.reference()
        if exchange.scatter:
            expected, expected_lse = own_heads(expected, rank, ranks), own_heads(expected_lse, rank, ranks)
        compare(out, expected, rms=2e-6 if dtype == "float32" else 3e-3)
        compare_lse(lse, expected_lse, atol=5e-6)
        assert whole * (ranks - 1) / ranks <= exchange.received_bytes * (ranks if exchange.scatter else 1) <= 1.05 * whole


def part_of(problem: DecodeProblem, rank: int, ranks: int) -> DecodeProblem:
    """The keys of a rank: whole pages, one run of them after the other, the last rank's part with the newest tokens."""
    page = problem.k_cache.shape[1]
    tables, lengths = [], []
    for row, length in zip(problem.block_ids, problem.kv_lens.tolist(), strict=True):
        pages = -(-length // page)
        first, last = pages * rank // ranks, pages * (rank + 1) // ranks
        tables.append(torch.cat([row[first:], row[:first]]))
        lengths.append(max(0, min(length, last * page) - first * page))
    return evolve(problem, block_ids=torch.stack(tables), kv_lens=torch.tensor(lengths, dtype=torch.int32, device=row.device))


def kernel_of(rank: int, ranks: int, query_tokens: int) -> Kernel:
    """Causal on the rank that has the newest tokens; on the others every query sees every key."""
    kernel = tle_attn.load("hy3/decode_bf16").set({"epilogue.lse": "2"}).kernel(group=6, query_tokens=query_tokens)
    return kernel if rank == ranks - 1 else evolve(kernel, mainloop=evolve(kernel.mainloop, mask=(Length(),)))


def decode(rank: int, ranks: int, *, query_tokens: int, seed: int) -> None:
    """Kernels over parts of every sequence; short sequences are empty on some ranks."""
    lengths = [3, 64, 200, 0, 450] if target() == "cpu" else [3, 64, 9000, 0, 70_001]
    problem = make_decode_problem(lengths, heads=(6, 1), query_tokens=query_tokens, seed=seed, **place())
    part = part_of(problem, rank, ranks)
    plan = tle_attn.plan(kernel_of(rank, ranks, query_tokens), **part.geometry, target=target(), **place())
    for scatter in (False, True):
        exchange = parallel.plan_exchange(tokens=5 * query_tokens, heads=6, head_dim=128, base="2", scatter=scatter)
        if exchange.out is not None:
            exchange.out.fill_(math.nan)
        out, lse = exchange.run(*plan.run(**part.inputs, out=exchange.out, lse=exchange.lse))
        expected, expected_lse = problem.reference(lse_base="2")
        if scatter:
            expected, expected_lse = own_heads(expected, rank, ranks), own_heads(expected_lse, rank, ranks)
        compare(out, expected, rms=6e-3, name_row=problem.name_row)  # partial results are rounded to bf16 too
        compare_lse(lse, expected_lse, atol=2e-3, name_row=problem.name_row)


def refused(rank: int, ranks: int) -> None:
    """What differs between ranks, or cannot be served, is refused on every rank, and the group can go on."""
    good = {"tokens": 5, "heads": 6, "head_dim": 128, "base": "e"}
    cases = [
        ({"tokens": 5 + rank}, InputError, "tokens: not the same on every rank: 5 on rank 0, 6 on rank 1"),
        ({"base": "e2"[min(rank, 1)]}, InputError, "base: not the same on every rank: e on rank 0, 2 on rank 1"),
        ({"heads": 7, "scatter": True}, InputError, f"heads: 7 cannot be shared by {ranks} ranks; scatter=False gathers all of them"),
        ({"base": "10"}, InputError, "base: '10' where"),
        ({"dtype": torch.float16}, TleAttnError, "dtype: torch.float16 where bfloat16 or float32 is wanted"),
        ({"head_dim": 40}, InputError, "head_dim cannot be 40"),
    ]
    cases += [({"tokens": -1}, InputError, "tokens: -1 where an integer from 0 up"), ({"heads": True}, InputError, "heads: True where an integer from 1 up")]
    for change, error, message in cases:
        try:
            parallel.plan_exchange(**{**good, **change})
        except error as caught:
            assert message in str(caught), str(caught)
        else:
            raise AssertionError(f"{change} was not refused")
    exchange = parallel.plan_exchange(**good)
    state = torch.zeros(5, 6, 128, dtype=torch.bfloat16, **place()), torch.zeros(5, 6, **place())
    for index, change, message in ((0, state[0][:4], "out: shape (4, 6, 128) where"), (0, state[0].float(), "out: dtype float32"), (1, state[1][:, :3], "lse: shape (5, 3)")):
        wrong = list(state)
        wrong[index] = change
        try:
            exchange.run(*wrong)
        except TleAttnError as caught:
            assert message in str(caught), str(caught)
        else:
            raise AssertionError(f"{message} was not refused")
    exchange.run(*state)
    for scatter in (False, True):
        none = parallel.plan_exchange(**good | {"tokens": 0, "scatter": scatter})
        out, lse = none.run(state[0][:0], state[1][:0])
        assert out.shape == (0, 6 // (ranks if scatter else 1), 128) and lse.shape == out.shape[:2], "a step without tokens"


def graph(rank: int, ranks: int, *, scatter: bool, seed: int) -> None:
    """Decode and exchange in one CUDA graph, replayed with other lengths."""
    problem = make_decode_problem([5000] * 8, heads=(8, 1), seed=seed, poison=False, **place())
    kernel = tle_attn.load("hy3/decode_bf16").set({"epilogue.lse": "2"}).kernel(group=8)
    part = part_of(problem, rank, ranks)
    plan = tle_attn.plan(kernel, **part.geometry, **place())
    exchange = parallel.plan_exchange(tokens=8, heads=8, head_dim=128, base="2", scatter=scatter)
    out, lse = plan.run(**part.inputs, out=exchange.out, lse=exchange.lse)
    merged, merged_lse = exchange.run(out, lse)

    def step() -> None:
        plan.run(**part.inputs, out=out, lse=lse)
        exchange.run(out, lse, merged=merged, merged_lse=merged_lse)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    for lengths in ([5000] * 8, [3, 4999, 640, 0, 0, 1, 64, 129]):
        problem.kv_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        now = part_of(problem, rank, ranks)
        part.block_ids.copy_(now.block_ids)
        part.kv_lens.copy_(now.kv_lens)
        merged.fill_(math.nan)
        captured.replay()
        torch.cuda.synchronize()
        expected, _ = problem.reference()
        compare(merged, own_heads(expected, rank, ranks) if scatter else expected, rms=6e-3, name_row=problem.name_row)
