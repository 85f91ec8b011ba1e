"""Soft cap against tanh in float64, over its whole range."""

import math

import pytest
import torch

from tle_attn.components.scores.soft_cap import SoftCap
from tle_attn.testing.blocks import check_block


@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
def test_random_scores(target, problem, cap, seed):
    check_block(SoftCap(cap=cap), "soft_cap_scores", problem=problem, target=target, seed=seed)


def test_the_whole_range(target):
    """From tiny to far beyond the cap; the absolute error stays far below what a weight feels."""
    s = torch.linspace(-2000.0, 2000.0, 64 * 8).reshape(64, 8)
    s[0] = torch.tensor([0.0, 1e-6, -1e-6, 1e-3, -1e-3, 1e30, -1e30, 72.0])
    run = check_block(SoftCap(cap=50.0), "soft_cap_scores", inputs={"s": s}, target=target)
    limit = 50.0 * math.log2(math.e)
    assert run.outputs["s"].abs().max() <= limit
    assert (run.outputs["s"] - run.expected["s"]).abs().max() < 3e-5 * limit


def test_small_scores_pass(target):
    s = torch.full((64, 8), 0.01)
    run = check_block(SoftCap(cap=50.0), "soft_cap_scores", inputs={"s": s}, target=target, rms=2e-3)
    assert (run.outputs["s"] - s).abs().max() < 2e-5
