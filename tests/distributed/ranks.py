"""What a rank of the tests does; imported by the processes that they start."""

from __future__ import annotations

import math
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


def start(rank: int, ranks: int, folder: str, test: str, arguments: dict[str, Any]) -> None:
    """Run a test of this module as rank `rank`; gloo on CPUs."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=rank, world_size=ranks)
    try:
        with emulate():
            globals()[test](rank, ranks, **arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def own_heads(tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    share = tensor.shape[1] // ranks
    return tensor[:, rank * share : (rank + 1) * share]


def states(rank: int, ranks: int, *, dtype: str, base: str, seed: int) -> None:
    """Random states, some of them empty, some rows empty on every rank; gathered and scattered, twice over the same plan."""
    exchanges = [parallel.plan_exchange(tokens=5, heads=6, head_dim=128, base=base, dtype=getattr(torch, dtype), scatter=scatter) for scatter in (False, True)]
    whole = ranks * 5 * 6 * (128 * getattr(torch, dtype).itemsize + 4)
    for turn, exchange in enumerate([*exchanges, *exchanges]):
        problem = make_states_problem(ranks, 5, 6, dtype=getattr(torch, dtype), base=base, empty=0.4, seed=seed + turn)
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
    return evolve(problem, block_ids=torch.stack(tables), kv_lens=torch.tensor(lengths, dtype=torch.int32))


def kernel_of(rank: int, ranks: int, query_tokens: int) -> Kernel:
    """Causal on the rank that has the newest tokens; on the others every query sees every key."""
    kernel = tle_attn.load("hy3/decode_bf16").set({"epilogue.lse": "2"}).kernel(group=6, query_tokens=query_tokens)
    return kernel if rank == ranks - 1 else evolve(kernel, mainloop=evolve(kernel.mainloop, mask=(Length(),)))


def decode(rank: int, ranks: int, *, query_tokens: int, seed: int) -> None:
    """Emulated kernels over parts of every sequence; short sequences are empty on some ranks."""
    problem = make_decode_problem([3, 64, 200, 0, 450], heads=(6, 1), query_tokens=query_tokens, seed=seed)
    part = part_of(problem, rank, ranks)
    plan = tle_attn.plan(kernel_of(rank, ranks, query_tokens), **part.geometry, target="cpu")
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
    for change, error, message in cases:
        try:
            parallel.plan_exchange(**{**good, **change})
        except error as caught:
            assert message in str(caught), str(caught)
        else:
            raise AssertionError(f"{change} was not refused")
    exchange = parallel.plan_exchange(**good)
    state = torch.zeros(5, 6, 128, dtype=torch.bfloat16), torch.zeros(5, 6)
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
