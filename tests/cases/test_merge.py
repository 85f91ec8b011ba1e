"""Case 12: merging states, in whole kernels; the merge alone is tested in tests/components/reducers/test_split_merge.py."""

import math

import pytest
import torch
from attrs import evolve

from tests.cases.helpers import DYNAMIC, FP8, PARTS, WINDOW, check, kernel_of, launch, plan_for, problem_for, run
from tle_attn.oracle import merge_states
from tle_attn.testing import compare, compare_lse


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8])
def test_12_a_part_without_a_visible_key_changes_nothing(recipe, seed):
    """The last of four parts has one key, which only the last of three query tokens sees: for the others its state is empty."""
    kernel = kernel_of(recipe, PARTS, query_tokens=3)
    problem = problem_for(kernel, (3 * 64 + 1, 3 * 64 + 2, 65, 3 * 64), seed=seed)
    check(kernel, problem, run(kernel, problem))


def test_12_parts_before_the_window_are_empty(seed):
    """A window of one key and three query tokens around a tile's edge: each part is empty for some of them."""
    kernel = kernel_of(WINDOW, {"mask[1].window": 1, **PARTS}, query_tokens=3)
    problem = problem_for(kernel, (193, 194, 64, 1), seed=seed)
    check(kernel, problem, run(kernel, problem))


def test_12_sliced_merge_of_empty_states(seed):
    """The same by polling; a task map, so that parts may wait for each other."""
    kernel = kernel_of(DYNAMIC, {"schedule.min_tokens": 64, "reduce.slice_above": 1}, query_tokens=3)
    problem = problem_for(kernel, (6 * 64 + 1, 0), seed=seed)
    plan = plan_for(kernel, problem)
    result = launch(plan, problem)
    assert plan.records[:, 6].max() > 2
    check(kernel, problem, result)


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8])
def test_12_states_of_two_runs_merge_to_the_whole(recipe, seed):
    """Runs over the first and the second half of the pages, merged by the oracle, are a run over all of them; an empty half is the identity."""
    kernel = kernel_of(recipe)
    problem = problem_for(kernel, (192, 100, 0), seed=seed)
    first_lens = problem.kv_lens.clamp(max=128)
    halves = (
        evolve(problem, kv_lens=first_lens),
        evolve(problem, kv_lens=problem.kv_lens - first_lens, block_ids=problem.block_ids[:, 2:].contiguous()),
    )
    states = [run(kernel, half) for half in halves]
    assert (states[1][1][1] == -math.inf).all(), "the second sequence ends in the first half"
    out, lse = merge_states(*zip(*states, strict=True))
    whole, whole_lse = run(kernel, problem)
    compare(out, whole.double(), rms=3e-2 if problem.is_fp8 else 5e-3, name_row=problem.name_row)
    compare_lse(lse, whole_lse, atol=1e-3, name_row=problem.name_row)
    assert torch.equal(out[1], states[0][0][1].double())
