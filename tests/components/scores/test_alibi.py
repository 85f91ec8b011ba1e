"""ALiBi against its definition: the right slope for each head, on both sides of the query."""

import torch

from tle_attn.components.scores.alibi import Alibi
from tle_attn.testing.blocks import check_block


def test_random_scores(target, problem, seed):
    head = torch.randint(0, 32, (1, problem.columns))
    check_block(Alibi(), "alibi_bias", problem=problem, inputs={"alibi_slopes": torch.rand(32), "head": head}, target=target, seed=seed)


def test_distance_is_symmetric_and_zero_at_the_query(target):
    distance = (20.0 - torch.arange(64)[:, None]).expand(64, 8)
    inputs = {"s": torch.zeros(64, 8), "distance": distance, "head": torch.arange(8)[None, :], "alibi_slopes": torch.arange(1.0, 9.0)}
    run = check_block(Alibi(), "alibi_bias", inputs=inputs, target=target)
    s = run.outputs["s"]
    assert not s[20].any() and torch.equal(s[20 - 7], s[20 + 7]) and torch.allclose(s[0] / s[0, 0], torch.arange(1.0, 9.0))
