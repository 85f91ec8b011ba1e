"""Cases 20 to 25 of prefill: groups, pages and head sizes; other lengths with one plan; rows alone and in a batch; tiles around the ring's stages."""

import pytest
import torch
from attrs import evolve

import tle_attn
from tests.cases.helpers import MASKED_PREFILL, PAGED_PREFILL, PREFILL, bits, check, kernel_of, launch, plan_for, prefill_problem_for, run
from tle_attn.errors import SpecError

PAIRS = ((1, 1), (129, 200), (5, 70), (130, 33))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 16, 64])
def test_20_groups(group, seed):
    kernel = kernel_of(PAGED_PREFILL[0], group=group)
    problem = prefill_problem_for(kernel, ((3, 70), (1, 1)) if group > 8 else PAIRS, kv_heads=2 if group < 8 else 1, seed=seed)
    check(kernel, problem, run(kernel, problem))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("recipe", PAGED_PREFILL)
def test_21_pages(recipe, page, layout, seed):
    kernel = kernel_of(recipe, group=1, page=page)
    problem = prefill_problem_for(kernel, (*PAIRS, (2, page), (2, page + 1), (1, 3 * page - 1)), kv_heads=2, layout=layout, seed=seed)
    check(kernel, problem, run(kernel, problem))


@pytest.mark.parametrize("page", [1, 8, 2848])
def test_21_pages_that_no_kernel_has(page):
    with pytest.raises(SpecError, match=rf"page cannot be {page}\n.*\n  allowed  16, 32, 64, 128\n  because"):
        kernel_of(PAGED_PREFILL[0], page=page)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 192, 256, 512])
@pytest.mark.parametrize("recipe", PREFILL)
def test_22_head_sizes(recipe, head_dim, seed):
    """Right, or an error of at most ten lines."""
    try:
        kernel = kernel_of(recipe, {"problem.head_dim": head_dim}, group=1)
    except SpecError as error:
        assert head_dim != 64 or "fp8" in recipe
        assert len(str(error).splitlines()) <= 10
        return
    problem = prefill_problem_for(kernel, PAIRS, seed=seed)
    check(kernel, problem, run(kernel, problem))


@pytest.mark.parametrize("recipe", PREFILL + MASKED_PREFILL)
def test_23_other_lengths_with_one_plan(recipe, seed):
    """A plan is for so many rows and sequences; lengths change between runs, and some sequences end."""
    kernel = kernel_of(recipe, group=1)
    batches = [((64, 64),) * 4, ((1, 1), (200, 300), (0, 0), (55, 55)), ((256, 256), (0, 0), (0, 0), (0, 0)), ((3, 3), (3, 3), (125, 125), (125, 125))]
    problems = [prefill_problem_for(kernel, pairs, seed=seed + i) for i, pairs in enumerate(batches)]
    plan = plan_for(kernel, max(problems, key=lambda p: len(p.q)))
    for problem in problems:
        check(kernel, problem, launch(plan, problem))
        plan.schedule(**problem.lengths)
        check(kernel, problem, launch(plan, problem, scheduled=True))


@pytest.mark.parametrize("recipe", PREFILL)
def test_24_a_row_does_not_depend_on_its_batch(recipe, seed):
    """A sequence alone, first, and last of others."""
    kernel = kernel_of(recipe, group=1)
    problem = prefill_problem_for(kernel, ((150, 150), (9, 9), (140, 140)), seed=seed)
    out, _ = run(kernel, problem)
    rows = slice(0, 150)
    scale = problem.q_scale
    alone = {"q": problem.q[rows], "block_ids": problem.block_ids[:1], "kv_lens": problem.kv_lens[:1], "cu_seqlens_q": problem.cu_seqlens_q[:2]}
    single, _ = run(kernel, evolve(problem, **alone, q_scale=None if scale is None else scale[:1]))
    assert bits(single) == bits(out[rows])


@pytest.mark.parametrize("recipe", PREFILL + MASKED_PREFILL)
def test_24_runs_are_equal_in_every_schedule(recipe, seed):
    kernel = kernel_of(recipe, group=1)
    problem = prefill_problem_for(kernel, ((140, 270), (3, 3), (60, 130)), seed=seed)
    results = {bits(run(kernel, problem, seed=schedule)[0]) for schedule in range(8)}
    assert len(results) == 1


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("recipe", PREFILL)
def test_25_tiles_around_the_number_of_stages(recipe, stages, seed):
    try:
        kernel = kernel_of(recipe, {"ring.stages": stages}, group=1)
    except SpecError as error:
        assert stages == 1 or "shared memory" in str(error)
        return
    tiles = (0, 1, stages - 1, stages, stages + 1, 2 * stages + 1)
    pairs = [(1 if "block_ids" in kernel.arguments else 128 * n, 128 * n) for n in tiles]
    problem = prefill_problem_for(kernel, pairs, seed=seed)
    check(kernel, problem, run(kernel, problem))


def test_30_options_that_would_change_nothing():
    """Decode's query tokens, and a count of rows for a decode kernel."""
    with pytest.raises(SpecError, match="query_tokens"):
        kernel_of(PAGED_PREFILL[0], query_tokens=2)
    with pytest.raises(tle_attn.errors.InputError, match="max_query_rows: hy3/decode_bf16 is no prefill kernel"):
        tle_attn.plan("hy3/decode_bf16", batch=1, query_heads=8, kv_heads=1, max_query_rows=5, target="cpu")
    with pytest.raises(tle_attn.errors.InputError, match="max_query_rows: None where an integer from 0 up is wanted"):
        tle_attn.plan("hy3/prefill_bf16", batch=1, query_heads=8, kv_heads=1, target="cpu")


def test_offsets_of_units_are_32_bit_and_rows_are_not():
    """A plan for very many rows is a few megabytes of records."""
    plan = tle_attn.plan("hy3/prefill_bf16", batch=2, query_heads=8, kv_heads=1, max_query_rows=1 << 24, target="cpu")
    assert plan.workspace_bytes < 8 << 20 and plan.workspace["units"].dtype == torch.int32
