"""Cases 4 to 6: NaN in everything that holds nothing changes no bit."""

import math

import pytest
import torch
from attrs import evolve

from tests.cases.helpers import DYNAMIC, FAMILY, FP8_PER_TOKEN, KV_PER_TOKEN, STATIC, WINDOW, bits, check, kernel_of, launch, plan_for, problem_for, run

LENGTHS = (1, 13, 63, 65, 127)


@pytest.mark.parametrize("recipe,page,kv_heads,target", [
    *((recipe, 64, 1, "cpu") for recipe in FAMILY), (DYNAMIC, 16, 1, "cpu"), (FP8_PER_TOKEN, 16, 1, "cpu"), (FP8_PER_TOKEN, 64, 8, "cpu"),
    (FP8_PER_TOKEN, 64, 1, "tle-emulated"), *((KV_PER_TOKEN, page, 2, "cpu") for page in (16, 64, 128)), (KV_PER_TOKEN, 64, 1, "tle-emulated"),
])  # fmt: skip
def test_4_unused_slots(recipe, page, kv_heads, target, seed):
    """NaN in K, V and scales of every slot without a key, in pages without one, and in the scales' padding."""
    kernel = kernel_of(recipe, page=page)
    poisoned, zeros = (problem_for(kernel, LENGTHS, kv_heads, seed=seed, poison=poison) for poison in (True, False))
    assert poisoned.k_cache.float().isnan().any() and poisoned.v_cache.float().isnan().any()
    result = run(kernel, poisoned, target)
    check(kernel, poisoned, result)
    assert bits(result[0]) == bits(run(kernel, zeros, target)[0])


@pytest.mark.parametrize("page", [64, 16])
def test_4_pages_before_a_window(page, seed):
    """The same fault on the other side: pages that no query sees any more may have been given to something else."""
    kernel = kernel_of(WINDOW, {"mask[1].window": 100}, page=page)
    problem = problem_for(kernel, (400, 64, 170), seed=seed)
    for ids, length in zip(problem.block_ids.long(), problem.kv_lens.tolist(), strict=True):
        before = ids[: max(length - 100, 0) // page]
        problem.k_cache[before], problem.v_cache[before] = math.nan, math.nan
    check(kernel, problem, run(kernel, problem))


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8_PER_TOKEN, KV_PER_TOKEN])
def test_5_query_rows_of_padding(recipe, seed):
    """24 query rows of which 21 are valid: 7 sequences of 3 query tokens; q and out are cut from larger tensors of NaN."""
    kernel = kernel_of(recipe, query_tokens=3)
    problem = problem_for(kernel, (64, 3, 1, 130, 65, 9, 128), seed=seed)
    rows, heads, dim = problem.q.shape
    q = torch.full((24, heads, dim), math.nan).to(problem.q.dtype)
    q[:rows] = problem.q
    q_scale = None
    if problem.q_scale is not None:
        q_scale = torch.full((24, heads), math.nan)
        q_scale[:rows] = problem.q_scale
        q_scale = q_scale[:rows]
    out = torch.full((24, heads, dim), 7.0, dtype=torch.bfloat16)
    padded = evolve(problem, q=q[:rows], q_scale=q_scale)
    check(kernel, padded, run(kernel, padded, out=out[:rows]))
    assert (out[rows:] == 7.0).all()


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8_PER_TOKEN, KV_PER_TOKEN])
def test_5_dead_requests(recipe, seed):
    """Requests of length 0 with NaN in their query rows, between live ones: their rows are 0, the others' right."""
    kernel = kernel_of(recipe, query_tokens=3)
    problem = problem_for(kernel, (64, 0, 70, 0), seed=seed)
    q = problem.q.clone()
    q[3:6], q[9:] = math.nan, math.nan
    out, lse = run(kernel, evolve(problem, q=q))
    check(kernel, problem, (out, lse))
    assert not out[3:6].any() and not out[9:].any()


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8_PER_TOKEN, KV_PER_TOKEN])
def test_5_one_query_row_of_nan_spoils_no_other(recipe, seed):
    """All query rows of a head share tiles and the moves of the reference maximum."""
    kernel = kernel_of(recipe, query_tokens=3)
    problem = problem_for(kernel, (600, 70), seed=seed, logit_std=4.0)
    q = problem.q.clone()
    q[1, 5] = math.nan
    out, lse = run(kernel, evolve(problem, q=q))
    assert out[1, 5].isnan().all()
    expected, expected_lse = problem.reference(lse_base="e")
    out[1, 5], lse[1, 5] = expected[1, 5].bfloat16(), expected_lse[1, 5]
    check(kernel, problem, (out, lse))


@pytest.mark.parametrize("recipe", [*FAMILY, KV_PER_TOKEN])
def test_6_workspace(recipe, seed):
    """NaN and large numbers in the workspace before every launch; several tasks a sequence, so that it is used."""
    kernel = kernel_of(recipe)
    problem = problem_for(kernel, (1100, 0, 65), seed=seed)
    plan = plan_for(kernel, problem)
    expected, lse = launch(plan, problem)
    check(kernel, problem, (expected, lse))
    for filling in (math.nan, math.inf):
        for name, tensor in plan.workspace.items():
            if name != "counters":
                tensor.fill_(filling if tensor.is_floating_point() else 2**30)
        assert bits(launch(plan, problem)[0]) == bits(expected)
        assert not plan.workspace["counters"].any()


def test_6_workspace_of_another_batch(seed):
    """What an earlier launch left serves as well: no part of it is read."""
    kernel = kernel_of(STATIC)
    first, second = problem_for(kernel, (1100, 600, 65), seed=seed), problem_for(kernel, (65, 0, 1100), seed=seed + 1)
    plan = plan_for(kernel, second)
    expected = bits(launch(plan, second)[0])
    launch(plan, first)
    assert bits(launch(plan, second)[0]) == expected
