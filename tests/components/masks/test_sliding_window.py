"""Sliding window: which keys a query sees, and the first key that a request needs at all."""

import pytest
import torch

from tle_attn.components.masks.sliding_window import SlidingWindow
from tle_attn.spec import Problem
from tle_attn.testing.blocks import check_block


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 4096])
def test_random_positions(target, window, seed):
    check_block(SlidingWindow(window=window), "window_mask", problem=Problem(query_tokens=2), target=target, seed=seed)


def test_a_window_of_one_is_the_query_itself(target):
    key, query = torch.arange(64)[:, None], torch.arange(8)[None, :] + 30
    run = check_block(SlidingWindow(window=1), "window_mask", inputs={"key": key, "query": query}, target=target)
    assert [torch.isfinite(run.outputs["s"][:, i]).nonzero()[0].item() for i in range(8)] == list(range(30, 38)), "and later keys, which the causal mask hides"


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("window,kv_len", [(1, 1), (9, 5), (9, 9), (9, 10), (9, 1000), (4096, 4000)])
def test_first_key_is_the_first_that_any_query_sees(target, tokens, window, kv_len):
    def reference(first, kv_len):
        positions = range(int(kv_len) - tokens, int(kv_len))
        seen = [t for t in range(int(kv_len)) for p in positions if p - t < window]
        return torch.tensor(min(seen, default=0), dtype=torch.int32)

    check_block(
        SlidingWindow(window=window),
        "window_first_key",
        problem=Problem(query_tokens=tokens),
        inputs={"first": 0, "kv_len": kv_len},
        reference=reference,
        target=target,
    )


def test_an_earlier_link_may_start_later(target):
    check_block(
        SlidingWindow(window=9), "window_first_key", inputs={"first": 995, "kv_len": 1000}, reference=lambda first, kv_len: torch.tensor(995), target=target
    )
