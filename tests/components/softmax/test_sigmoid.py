"""Sigmoid weights against their definition; what goes with them and what does not."""

import math

import pytest
import torch

import tle_attn
from tle_attn.components.softmax.sigmoid import SigmoidWeights
from tle_attn.errors import SpecError
from tle_attn.testing.blocks import BlockTest, check_block


def inputs(problem):
    n = problem.columns
    s = 4 * torch.randn(64, n)
    s[::7] = -math.inf
    s[1] = 200.0
    return {"s": s, "m": torch.zeros(n), "l": torch.zeros(64, n), "o": torch.randn(problem.value_tile_dim, n)}


@pytest.mark.parametrize("bias", [0.0, -6.0, 2.5])
def test_weights(target, problem, bias, seed):
    check_block(SigmoidWeights(bias=bias), "softmax_step", problem=problem, inputs=inputs(problem), target=target, seed=seed)


def test_fp8_weights_use_the_range_of_their_type(target, fp8, seed):
    """In the order of keys that the V operand stores them in."""
    outputs, given = BlockTest(block=SigmoidWeights(), function="softmax_step", problem=fp8, inputs=inputs(fp8)).run(target=target, seed=seed)
    expected = 256 * torch.sigmoid(given["s"].double() / math.log2(math.e))
    assert outputs["p_tile"].max() == 256.0
    found, wanted = outputs["p_tile"].double().sort(dim=1)[0], expected.T.sort(dim=1)[0]
    assert (found - wanted).norm() < 4e-2 * wanted.norm()


@pytest.mark.parametrize("options,message", [
    ({"epilogue.lse": "e"}, "softmax/sigmoid has no sum of weights"), ({"score": [{"block": "sink"}]}, "softmax/sigmoid has no sum of weights"),
    ({"softmax.bias": float("inf")}, "bias cannot be"), ({"softmax.bias": True}, "is not a number"),
])  # fmt: skip
def test_refused(options, message):
    recipe = tle_attn.load("variants/decode_bf16_sigmoid")
    if "score" in options:
        recipe.tables["score"] = options["score"]
    else:
        recipe = recipe.set(options)
    with pytest.raises(SpecError, match=message):
        recipe.kernel()
