"""Context-parallel decode over NCCL; needs two GPUs."""

import secrets

import pytest
import torch
import torch.multiprocessing as mp

from benchmarks.watchdog import watch
from tests.distributed import ranks

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
SECONDS = 240.0  # processes start, and compile


@pytest.fixture(autouse=True)
def no_hang(request, console):
    """In place of the shorter limit of the other GPU tests."""
    with watch(request.node.nodeid, SECONDS, console):
        yield


@pytest.fixture
def spawn(tmp_path):
    """spawn(test, **arguments): a test of `ranks` on two GPUs; an error on any of them fails it."""

    def run(test: str, **arguments) -> None:
        print(f"{test}, {arguments}")
        mp.spawn(ranks.start, args=(2, str(tmp_path), test, arguments, True), nprocs=2)

    return run


@pytest.mark.parametrize("dtype,base", [("bfloat16", "2"), ("float32", "e")])
def test_states(spawn, dtype, base):
    spawn("states", dtype=dtype, base=base, seed=secrets.randbelow(2**31))


@pytest.mark.parametrize("query_tokens", [1, 3])
def test_context_parallel_decode(spawn, query_tokens):
    spawn("decode", query_tokens=query_tokens, seed=secrets.randbelow(2**31))


@pytest.mark.parametrize("scatter", [False, True])
def test_graph(spawn, scatter):
    spawn("graph", scatter=scatter, seed=secrets.randbelow(2**31))


def test_refused(spawn):
    spawn("refused")
