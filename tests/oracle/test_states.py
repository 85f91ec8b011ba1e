"""Merging partial states: equal to attention over all keys at once."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tle_attn.oracle import attention, merge_states


def _over(case, keys, first, last, base):
    """Attention of one sequence over keys first .. last - 1 of its own cache, without causality."""
    k, v = (cache[first:last] for cache in keys)
    pages = torch.arange(last - first, dtype=torch.int32)[None]
    return attention(case, k, v, pages, torch.tensor([last - first], dtype=torch.int32), query_tokens=len(case), causal=False, lse_base=base)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 20), min_size=0, max_size=4), base=st.sampled_from(["e", "2"]))
def test_parts_merge_to_the_whole(seed, cuts, base):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, 3, 4, generator=generator) * 3
    keys = torch.randn(2, 20, 1, 1, 4, generator=generator)
    edges = [0, *sorted(cuts), 20]
    parts = [_over(q, keys, a, b, base) for a, b in itertools.pairwise(edges)]
    got = merge_states([out for out, _ in parts], [lse for _, lse in parts], lse_base=base)
    torch.testing.assert_close(got, _over(q, keys, 0, 20, base), rtol=1e-12, atol=1e-12)


def test_empty_states():
    some, lse = torch.randn(2, 3, 4).double(), torch.randn(2, 3).double()
    unread = torch.full_like(some, math.nan), torch.full_like(lse, -math.inf)
    out, total = merge_states([unread[0], unread[0]], [unread[1], unread[1]])
    assert (out == 0).all() and (total == -math.inf).all()
    out, total = merge_states([unread[0], some], [unread[1], lse])
    torch.testing.assert_close((out, total), (some, lse), rtol=1e-15, atol=0)


def test_lse_far_apart_or_large_do_not_overflow():
    out, lse = merge_states(torch.tensor([[1.0], [2.0], [7.0]]), torch.tensor([-1e4, 1e4, 1e4]))
    assert out.tolist() == [4.5] and float(lse) == pytest.approx(1e4 + math.log(2))


@pytest.mark.parametrize(
    ("lses", "base", "message"),
    [
        (torch.zeros(2, 4), "e", r"lses: shape \[2, 4\]; must be that of outs without its last dimension, \[2, 3\]"),
        (torch.full((2, 3), math.nan), "e", "lses: has NaN"),
        (torch.full((2, 3), math.inf), "e", "lses: has NaN or \\+inf"),
        (torch.zeros(2, 3), None, "lse_base: None; allowed"),
    ],
)
def test_states_that_do_not_fit(lses, base, message):
    with pytest.raises(ValueError, match=message):
        merge_states(torch.zeros(2, 3, 5), lses, lse_base=base)
