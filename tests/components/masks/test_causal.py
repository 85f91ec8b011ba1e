"""Causal mask against its definition, at the positions where it matters."""

import torch

from tle_attn.components.masks.causal import Causal
from tle_attn.testing.blocks import check_block


def test_random_positions(target, problem, seed):
    check_block(Causal(), "causal_mask", problem=problem, target=target, seed=seed)


def test_diagonal(target):
    """Queries 60 .. 67 of a tile that starts at key 32: each sees its own key and none after it."""
    key, query = 32 + torch.arange(64)[:, None], 60 + torch.arange(8)[None, :]
    run = check_block(Causal(), "causal_mask", inputs={"key": key, "query": query}, target=target)
    visible = torch.isfinite(run.outputs["s"])
    assert visible.sum(0).tolist() == [29 + i for i in range(8)]
    assert all(visible[28 + i, i] and not visible[29 + i :, i].any() for i in range(8))


def test_before_the_first_key_nothing_is_seen(target):
    run = check_block(Causal(), "causal_mask", inputs={"key": torch.arange(64)[:, None], "query": torch.tensor([[-1]])}, target=target)
    assert torch.isinf(run.outputs["s"]).all()
