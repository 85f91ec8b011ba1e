"""ALiBi against its definition: the right slope for each head, on both sides of the query."""

import math

import torch

from tle_attn.components.scores.alibi import Alibi
from tle_attn.testing.blocks import check_block


def test_random_scores(target, problem, seed):
    check_block(Alibi(), "alibi_bias", problem=problem, target=target, seed=seed)


def test_slopes(target, seed):
    """Of each head, in base-2 units."""

    def reference(head, alibi_slopes):
        return -alibi_slopes.double()[int(head)] * math.log2(math.e)

    slopes = torch.rand(32)
    for head in (0, 7, 31):
        check_block(Alibi(), "alibi_slope", inputs={"head": head, "value": 0.0, "alibi_slopes": slopes}, reference=reference, target=target, seed=seed)


def test_distance_is_symmetric_and_zero_at_the_query(target):
    distance = (20.0 - torch.arange(64)[:, None]).expand(64, 8)
    inputs = {"s": torch.zeros(64, 8), "distance": distance, "of_head": torch.arange(1.0, 9.0)[None, :]}
    s = check_block(Alibi(), "alibi_bias", inputs=inputs, target=target).outputs["s"]
    assert not s[20].any() and torch.equal(s[20 - 7], s[20 + 7]) and torch.allclose(s[0] / s[0, 0], torch.arange(1.0, 9.0))
