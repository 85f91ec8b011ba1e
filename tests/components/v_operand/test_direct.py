"""Direct V operand: publishing P, clearing unused tokens, and the product."""

import pytest
import torch

from tle_attn.components.v_operand.direct import DirectV
from tle_attn.errors import SpecError
from tle_attn.spec import Constant, DType, Problem
from tle_attn.testing.blocks import check_block


def published(p: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    return (p > limit).any().int(), p.T


@pytest.mark.parametrize("limit,over", [(4.0, True), (5.5, False)])
def test_publish(target, problem, limit, over):
    """P^T in bf16, and whether an element is above the limit, wherever it is."""
    p = torch.rand(64, problem.columns) * 3
    at = int(torch.randint(64, ())), int(torch.randint(problem.columns, ()))
    p[at] = 5.0
    run = check_block(DirectV(), "publish_p", problem=problem, inputs={"p": p, "limit": Constant(limit)}, reference=published, target=target)
    assert bool(run.outputs["over"]) is over
    assert torch.equal(run.outputs["p_tile"], p.T.bfloat16().float())


@pytest.mark.parametrize("valid", [1, 7, 63])
def test_clear(target, problem, valid):
    """Tokens from `valid` on become zero, whatever they held."""
    v = torch.randn(64, problem.head_dim)
    v[valid:] = float("nan")

    def reference(v_tile, valid):
        return torch.where(torch.arange(64)[:, None] < valid, v_tile, 0.0)

    check_block(DirectV(), "clear_v", problem=problem, inputs={"v_tile": v, "valid": valid}, reference=reference, target=target, rms=0.0)


def test_product(target, problem, seed):
    check_block(DirectV(), "pv_product", problem=problem, target=target, seed=seed)


def test_fp8_is_refused():
    with pytest.raises(SpecError, match="the direct V operand cannot take fp8 tiles") as caught:
        DirectV().check(Problem(dtype=DType.FP8))
    assert "K-contiguous" in str(caught.value)
