"""Score expressions against torch, on every target."""

import math

import pytest
import torch

from tle_attn.components.scores.expression import ScoreExpression
from tle_attn.errors import SpecError
from tle_attn.spec import Problem
from tle_attn.testing.blocks import check_block

LOG2E = math.log2(math.e)

CASES = [
    ("s - rate * abs(query - key)", {"rate": 0.25}, lambda s, key, query, head: s - 0.25 * (query - key).abs()),
    ("cap * tanh(s / cap)", {"cap": 2}, lambda s, key, query, head: 2 * torch.tanh(s / 2)),
    ("s * sigmoid(s) + exp(-1.0 * abs(s)) - log(1 + abs(key - query))", {}, lambda s, key, query, head: s * torch.sigmoid(s) + torch.exp(-s.abs()) - torch.log1p((key - query).abs().double())),
    ("s + (1.5 if key // 16 == query // 16 else -1)", {}, lambda s, key, query, head: s + torch.where(key // 16 == query // 16, 1.5, -1.0)),
    ("near = key > query\nbias = (key % 7) / (head + 1)\nwhere(near or not s < 0, max(s, bias), min(-s, 0.5))", {}, lambda s, key, query, head: torch.where((key > query) | ~(s < 0), torch.maximum(s, (key % 7) / (head + 1)), torch.clamp(-s, max=0.5))),
    ("s + exp2(log2(float(1 + key))) + half * 2 ", {"half": 0.5}, lambda s, key, query, head: s + (1 + key) + 1.0),
]  # fmt: skip


@pytest.mark.parametrize("value,numbers,meaning", CASES, ids=[c[0].splitlines()[-1] for c in CASES])
def test_values(target, value, numbers, meaning, seed):
    def reference(s, key, query, head):
        return meaning(s.double() / LOG2E, key.long(), query.long(), head.long()) * LOG2E

    block = ScoreExpression(value=value, numbers=numbers)
    inputs = {"head": torch.randint(0, 16, (1, 8))}
    check_block(block, block.function, inputs=inputs, reference=reference, target=target, seed=seed)
    check_block(block, block.function, inputs=inputs, target=target, seed=seed)


def decay(s, key, query):
    """Logits fall with the logarithm of the distance."""
    distance = max(query - key, 0)
    return s - strength * log(1.0 + distance)  # noqa: F821


def test_a_python_function(target):
    block = ScoreExpression.from_function(decay, strength=0.5)
    assert block == ScoreExpression(value="distance = max(query - key, 0)\ns - strength * log(1.0 + distance)", numbers={"strength": 0.5})
    check_block(block, block.function, target=target)


@pytest.mark.parametrize("value", ["key + 1", "query > key", "1.0", "where(key > 3, 1.0, 2.0)"])
def test_a_score_must_be_a_number_that_depends_on_s(value):
    with pytest.raises(SpecError, match="the value is no score"):
        ScoreExpression(value=value).check(Problem())
