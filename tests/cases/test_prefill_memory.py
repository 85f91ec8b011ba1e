"""Cases 1 to 6 of prefill: offsets past 2**31, page ids that are not pages, wrong integer types, NaN in everything that holds nothing."""

import math
import re

import pytest
import torch
from attrs import evolve

from tests.cases.helpers import FP8_PREFILL, MASKED_PREFILL, PAGED_PREFILL, PREFILL, bits, check, kernel_of, launch, plan_for, prefill_problem_for, run
from tests.cases.test_addressing import sparse, spread_out
from tle_attn.errors import InputError, InputTypeError

#: (queries, keys) with the lengths of case 4, and longer ones
PAIRS = ((1, 1), (13, 13), (5, 63), (65, 65), (127, 127), (3, 129), (130, 200))
ALL = PREFILL + MASKED_PREFILL


@pytest.mark.parametrize("recipe", PAGED_PREFILL)
def test_1_pages_past_2_31_elements(recipe, seed):
    """K and V of one joint cache [pages, 2, 64, 2, 128], and K scales apart; the pages in use end beyond 2**31 elements of their own types."""
    kernel = kernel_of(recipe, group=2)
    small = prefill_problem_for(kernel, ((2, 65), (130, 128)), kv_heads=2, seed=seed, extra_pages=0)
    per_token = small.k_scale is not None and small.k_scale.dim() == 4
    per_page = 2 * 64 * 2 * 128
    pages = 2**31 // (small.k_scale[0].numel() if per_token else per_page) + 3
    if per_token:  # the caches would not fit; they have their own test in the other recipes
        per_page //= 2
        k_cache, v_cache, scales = (sparse((pages, *t.shape[1:]), t.dtype) for t in (small.k_cache, small.v_cache, small.k_scale))
    else:
        joint = sparse((pages, 2, *small.k_cache.shape[1:]), small.k_cache.dtype)
        k_cache, v_cache, scales = joint[:, 0], joint[:, 1], small.k_scale
    used = torch.tensor([pages - 3, pages - 2, 0, pages - 1])
    k_cache[used], v_cache[used] = small.k_cache, small.v_cache
    if per_token:
        scales[used] = small.k_scale
    block_ids = small.block_ids.clone()
    block_ids[:, :2] = used[small.block_ids[:, :2].clamp(0, 3).long()].int()
    problem = evolve(small, k_cache=k_cache, v_cache=v_cache, k_scale=scales, block_ids=block_ids)
    assert int(block_ids[:, :2].max()) * per_page >= 2**31
    check(kernel, problem, run(kernel, problem))


@pytest.mark.parametrize("recipe,name", [
    (PAGED_PREFILL[0], "q"), (PAGED_PREFILL[0], "block_ids"), (FP8_PREFILL[0], "q_scale"), (MASKED_PREFILL[0], "block_mask"),
])  # fmt: skip
def test_1_other_tensors_past_2_31_elements(recipe, name, seed):
    """The same fault in what else has a stride that the caller chooses."""
    kernel = kernel_of(recipe, group=2)
    problem = prefill_problem_for(kernel, ((2, 100), (3, 65), (1, 64)), seed=seed)
    far = evolve(problem, **{name: spread_out(getattr(problem, name))})
    assert far.inputs[name].stride(0) * 2 >= 2**31 or name == "q"
    check(kernel, far, run(kernel, far))


def test_1_outputs_past_2_31_elements(seed):
    kernel = kernel_of(PAGED_PREFILL[0], group=2)
    problem = prefill_problem_for(kernel, ((2, 100), (3, 65)), seed=seed)
    out = spread_out(problem.new_output())
    check(kernel, problem, run(kernel, problem, out=out))


@pytest.mark.parametrize("page", [64, 16])
@pytest.mark.parametrize("recipe", PAGED_PREFILL)
def test_2_unused_block_ids_change_nothing(recipe, page, seed):
    kernel = kernel_of(recipe, group=1, page=page)
    problem = prefill_problem_for(kernel, ((1, 1), (0, 64), (130, 130), (2, 64), (5, page + 1)), seed=seed, poison=False)
    unused = torch.arange(problem.block_ids.shape[1]) >= (-(-problem.kv_lens // page))[:, None]
    expected = bits(run(kernel, problem)[0])
    for number in (-1, 2**31 - 1):
        marked = evolve(problem, block_ids=torch.where(unused, number, problem.block_ids))
        assert bits(run(kernel, marked, debug=True)[0]) == expected


@pytest.mark.parametrize("number", [-1, 2**31 - 1])
def test_2_used_page_out_of_range_in_debug_mode(number, seed):
    kernel = kernel_of(PAGED_PREFILL[0], group=1)
    problem = prefill_problem_for(kernel, ((1, 5), (20, 200)), seed=seed)
    problem.block_ids[1, 2] = number
    out = problem.new_output()
    with pytest.raises(InputError, match=re.escape(f"block_ids[1, 2]: page {number} is in use")):
        run(kernel, problem, out=out, debug=True)
    assert out.isnan().all(), "something was launched"


@pytest.mark.parametrize("recipe", PREFILL)
@pytest.mark.parametrize("name", ["block_ids", "kv_lens", "cu_seqlens_q"])
def test_3_wrong_integer_type_names_the_tensor(recipe, name):
    kernel = kernel_of(recipe, group=1)
    problem = prefill_problem_for(kernel, ((5, 5), (3, 64)))
    if problem.inputs[name] is None:
        pytest.skip("K and V have no pages")
    wrong = evolve(problem, **{name: getattr(problem, name).long()})
    with pytest.raises(InputTypeError, match=rf"^{name}: dtype int64 where int32 is wanted$"):
        launch(plan_for(kernel, problem), wrong)


@pytest.mark.parametrize("recipe", ALL)
def test_4_unused_slots(recipe, seed):
    """NaN in K, V and K scales of every slot without a key, in pages without one, in q scales of no query, and in rows of no sequence."""
    kernel = kernel_of(recipe, group=2)
    poisoned, zeros = (prefill_problem_for(kernel, PAIRS, seed=seed, poison=poison, padding_rows=3) for poison in (True, False))
    result = run(kernel, poisoned)
    check(kernel, poisoned, result)
    assert bits(result[0][: poisoned.num_queries]) == bits(run(kernel, zeros)[0][: poisoned.num_queries])


@pytest.mark.parametrize("recipe", PREFILL)
def test_5_rows_of_no_sequence_stay_as_they_are(recipe, seed):
    """24 query rows of which 21 are valid, the rest NaN."""
    kernel = kernel_of(recipe, group=2)
    problem = prefill_problem_for(kernel, ((3, 64), (3, 3), (9, 100), (6, 9)), seed=seed, padding_rows=3)
    out, lse = torch.full(problem.q.shape, 7.0, dtype=torch.bfloat16), torch.full(problem.q.shape[:2], 7.0)
    run(kernel, problem, out=out, lse=lse)
    assert (out[21:] == 7.0).all() and (lse[21:] == 7.0).all()
    expected, _ = problem.reference(p_quant=None)
    assert out[:21].isfinite().all() and (out[:21] - expected[:21]).norm() < 0.05 * expected[:21].norm()


@pytest.mark.parametrize("recipe", PREFILL)
def test_5_a_bad_query_row_spoils_itself_alone(recipe, seed):
    kernel = kernel_of(recipe, group=1)
    problem = prefill_problem_for(kernel, ((130, 130), (3, 3)), seed=seed)
    good = run(kernel, problem)[0]
    q = problem.q.clone()
    q[70] = math.nan
    out = run(kernel, evolve(problem, q=q))[0]
    others = torch.arange(len(q)) != 70
    assert bits(out[others]) == bits(good[others])


@pytest.mark.parametrize("recipe", ALL)
def test_6_old_workspace_changes_nothing(recipe, seed):
    kernel = kernel_of(recipe, group=1)
    problem = prefill_problem_for(kernel, ((130, 200), (0, 5), (1, 70), (20, 9)), seed=seed)
    plan = plan_for(kernel, problem)
    results = []
    for fill in (0x00, 0xFF, 0x7F):
        for name in set(plan.workspace) - set(plan.ZEROED):
            plan.workspace[name].view(torch.uint8).fill_(fill)
        results.append(launch(plan, problem))
    check(kernel, problem, results[0])
    assert len({bits(out) for out, _ in results}) == 1
    assert not any(plan.workspace[name].any() for name in plan.ZEROED)
