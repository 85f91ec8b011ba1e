"""Merging across processes: gloo on CPUs, 2 and 3 ranks, emulated kernels."""

import secrets

import pytest
import torch
import torch.multiprocessing as mp

import tle_attn.distributed as parallel
from tests.distributed import ranks
from tle_attn.errors import TleAttnError

RANKS = pytest.mark.parametrize("count", [2, 3])


@pytest.fixture
def spawn(tmp_path):
    """spawn(count, test, **arguments): a test of `ranks` on so many ranks; an error on any of them fails it."""

    def run(count: int, test: str, **arguments) -> None:
        print(f"{count} ranks, {test}, {arguments}")
        mp.spawn(ranks.start, args=(count, str(tmp_path), test, arguments), nprocs=count)

    return run


@RANKS
def test_states(spawn, count):
    seed = secrets.randbelow(2**31)
    spawn(count, "states", dtype=("bfloat16", "float32")[seed % 2], base="e2"[count % 2], seed=seed)


@RANKS
def test_context_parallel_decode(spawn, count):
    """One query token and several, whose causality is the business of the rank with the newest tokens."""
    spawn(count, "decode", query_tokens=count - 1, seed=secrets.randbelow(2**31))


def test_refused(spawn):
    spawn(2, "refused")


def test_without_a_group():
    with pytest.raises(TleAttnError, match="torch.distributed is not initialised"):
        parallel.plan_exchange(tokens=1, heads=1, head_dim=128, base="e")


@pytest.mark.parametrize("tokens,heads,dtype", [(1, 1, torch.bfloat16), (5, 3, torch.float32), (7, 13, torch.bfloat16)])
def test_parts_of_a_message_are_aligned(tokens, heads, dtype):
    sizes = parallel._bytes_of(tokens, heads, 64, dtype)
    assert all(size % 64 == 0 for size in sizes)
    assert sizes[0] >= tokens * heads * 64 * dtype.itemsize and sizes[1] >= tokens * heads * 4 and sum(sizes) < tokens * heads * (64 * dtype.itemsize + 4) + 128
