"""Mask expressions against torch."""

import pytest
import torch

from tle_attn.components.masks.expression import MaskExpression
from tle_attn.errors import SpecError
from tle_attn.spec import Problem
from tle_attn.testing.blocks import check_block


@pytest.mark.parametrize(
    ("value", "numbers", "meaning"),
    [
        ("key < sinks or query - key < window", {"sinks": 4, "window": 9}, lambda key, query, head: (key < 4) | (query - key < 9)),
        ("not (16 <= key < 32)", {}, lambda key, query, head: ~((key >= 16) & (key < 32)) & (query == query)),
        ("key // 8 == head % 4 and key != query", {}, lambda key, query, head: (key // 8 == head % 4) & (key != query)),
        ("far = abs(query - key) > 10\nfar if head < 4 else key % 2 == 0", {}, None),
    ],
)
def test_rules(target, value, numbers, meaning, seed):
    if meaning is None:
        with pytest.raises(SpecError, match="boolean where where wants a number"):
            MaskExpression(value=value).check(Problem())
        return

    def reference(s, key, query, head):
        return torch.where(meaning(key.long(), query.long(), head.long()), s, float("-inf"))

    block = MaskExpression(value=value, numbers=numbers)
    inputs = {"head": torch.randint(0, 16, (1, 8))}
    check_block(block, block.function, inputs=inputs, reference=reference, target=target, seed=seed)
    check_block(block, block.function, inputs=inputs, target=target, seed=seed)


def test_a_mask_must_be_a_rule():
    with pytest.raises(SpecError, match="the value is a float, and no rule"):
        MaskExpression(value="s + 1").check(Problem())
    for value in ("s > 1", "large = s > 0.5\nlarge or key == query"):
        with pytest.raises(SpecError, match="a mask cannot look at s"):
            MaskExpression(value=value).check(Problem())
    with pytest.raises(SpecError, match="the expression does not use raet, sink"):
        MaskExpression(value="key < sinks", numbers={"sinks": 4, "sink": 3, "raet": 1.0}).check(Problem())
