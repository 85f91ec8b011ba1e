"""Merging of partial results on the GPU: against the oracle, in place, in graphs."""

import math
import secrets

import pytest
import torch

import tle_attn
from tle_attn.testing import compare, compare_lse, make_states_problem

RMS = {torch.bfloat16: 3e-3, torch.float32: 2e-6}
LSE_ATOL = 5e-6


@pytest.fixture
def seed() -> int:
    value = secrets.randbelow(2**31)
    print(f"seed {value}")
    return value


@pytest.mark.parametrize("states,tokens,heads", [(1, 3, 1), (2, 1, 1), (2, 700, 64), (3, 64, 8), (4, 33, 5), (9, 257, 16)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("listed", [False, True])
def test_against_the_oracle(states, tokens, heads, dtype, listed, seed):
    problem = make_states_problem(states, tokens, heads, dtype=dtype, base="e2"[states % 2], listed=listed, seed=seed, device="cuda")
    out, lse = tle_attn.merge_states(**problem.inputs, base=problem.base)
    expected, expected_lse = problem.reference()
    compare(out, expected, rms=RMS[dtype], name_row=problem.name_row)
    compare_lse(lse, expected_lse, atol=LSE_ATOL, name_row=problem.name_row)


@pytest.mark.parametrize("head_dim", [64, 256])
def test_head_dims(head_dim, seed):
    problem = make_states_problem(3, 301, 7, head_dim=head_dim, seed=seed, device="cuda")
    compare(tle_attn.merge_states(**problem.inputs, base="e")[0], problem.reference()[0], rms=RMS[torch.bfloat16])


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("state", [0, 1])
def test_12_in_place_is_the_same_in_every_bit(listed, state, seed):
    """Warps of a row read its log-sum-exp while one of them writes it: every repetition must be right."""
    problem = make_states_problem(2, 4000, 16, empty=0.1, listed=listed, seed=seed, device="cuda")
    want, want_lse = tle_attn.merge_states(**problem.inputs, base="2")
    compare(want, make_states_problem(2, 4000, 16, empty=0.1, base="2", seed=seed).reference()[0], rms=RMS[torch.bfloat16])
    before = problem.outs.clone(), problem.lses.clone()
    for _ in range(20):
        problem.outs.copy_(before[0])
        problem.lses.copy_(before[1])
        tle_attn.merge_states(**problem.inputs, base="2", out=problem.outs[state], lse=problem.lses[state])
        assert torch.equal(problem.outs[state], want) and torch.equal(problem.lses[state], want_lse)
        assert torch.equal(problem.lses[1 - state], before[1][1 - state])


def test_12_empty_states(seed):
    problem = make_states_problem(2, 500, 8, empty=1.0, seed=seed, device="cuda")
    out, lse = tle_attn.merge_states(**problem.inputs, base="e")
    assert (out == 0).all() and (lse == -math.inf).all()
    problem = make_states_problem(2, 500, 8, empty=0.0, seed=seed, device="cuda")
    problem.outs[0], problem.lses[0] = math.nan, -math.inf
    out, lse = tle_attn.merge_states(**problem.inputs, base="2")
    assert torch.equal(out[:-1], problem.outs[1, :-1]) and torch.equal(lse, problem.lses[1])


def test_graph_and_no_host_synchronisation(seed):
    problem = make_states_problem(4, 300, 8, seed=seed, device="cuda")
    out, lse = tle_attn.merge_states(**problem.inputs, base="e")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        tle_attn.merge_states(**problem.inputs, base="e", out=out, lse=lse)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.cuda.graph(graph):
        tle_attn.merge_states(**problem.inputs, base="e", out=out, lse=lse)
    for turn in range(3):
        other = make_states_problem(4, 300, 8, seed=seed + turn, device="cuda")
        problem.outs.copy_(other.outs)
        problem.lses.copy_(other.lses)
        graph.replay()
        torch.cuda.synchronize()
        compare(out, other.reference()[0], rms=RMS[torch.bfloat16])
        compare_lse(lse, other.reference()[1], atol=LSE_ATOL)


def test_compiled_by_torch(seed):
    problem = make_states_problem(2, 64, 8, listed=True, seed=seed, device="cuda")
    outs, lses = [o.contiguous() for o in problem.outs], list(problem.lses)
    merge = torch.compile(lambda outs, lses: tle_attn.merge_states([o * 1 for o in outs], lses, base="e")[0] + 0, fullgraph=True, backend="aot_eager")
    compare(merge(outs, lses), problem.reference()[0], rms=RMS[torch.bfloat16])
