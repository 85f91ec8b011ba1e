"""Tree mask against its definition, and the positions around this step's tokens."""

import torch

from tle_attn.components.masks.tree import Tree
from tle_attn.spec import Problem
from tle_attn.testing.blocks import check_block


def inputs_for(problem, first_new, first_key, seq=1):
    column = torch.arange(problem.columns)
    return {
        "key": first_key + torch.arange(64)[:, None], "query": first_new + (column // problem.group).clamp(max=problem.query_tokens - 1)[None, :],
        "seq": seq, "first_new": first_new, "tree_mask": torch.randint(0, 2, (3, problem.query_tokens, problem.query_tokens), dtype=torch.uint8),
    }  # fmt: skip


def test_random_trees(target, problem, seed):
    """This step's tokens in the middle of the tile, across its start and its end, and before it; sequences shorter than the step."""
    for first_new, first_key in ((100, 64), (62, 64), (126, 64), (10, 64), (-2, 0), (0, 0)):
        check_block(Tree(), "tree_mask_rule", problem=problem, inputs=inputs_for(problem, first_new, first_key), target=target, seed=seed)


def test_slots_behind_the_last_token_are_hidden_whatever_the_tree(target):
    problem = Problem(query_tokens=3, group=2)
    inputs = inputs_for(problem, 70, 64) | {"tree_mask": torch.ones(3, 3, 3, dtype=torch.uint8)}
    run = check_block(Tree(), "tree_mask_rule", problem=problem, inputs=inputs, target=target)
    assert torch.isfinite(run.outputs["s"]).sum(0).tolist() == [9] * 8
