"""Cases 19 to 22: query tokens, group sizes, pages and head sizes, at the limits and past them."""

import re

import pytest

import tle_attn
from tests.cases.helpers import D64, DYNAMIC, FP8, FP8_PER_TOKEN, check, kernel_of, problem_for, run
from tle_attn.errors import InputError, ResourceError, SpecError, written
from tle_attn.testing import make_decode_problem

GEOMETRY = {"batch": 2, "query_heads": 8, "kv_heads": 1, "target": "cpu"}
LENGTHS = (1, 5, 0, 64, 70)
#: query rows of 64 columns take the place of a ring stage
STAGES_OF_64_COLUMNS = {DYNAMIC: 2, FP8: 5, FP8_PER_TOKEN: 5}
GROUPS = (*range(1, 9), 16)


@pytest.mark.parametrize("recipe,tokens", [(DYNAMIC, 5), (DYNAMIC, 8), (FP8, 4), (FP8_PER_TOKEN, 5)])
def test_19_query_tokens(recipe, tokens, seed):
    """1 and 3 are those of most other cases; all of them for every type: tests/components/mainloops and tests/compat."""
    kernel = kernel_of(recipe, query_tokens=tokens)
    problem = problem_for(kernel, LENGTHS, seed=seed)
    result = run(kernel, problem)
    assert result[0].isfinite().all()
    check(kernel, problem, result)


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8, FP8_PER_TOKEN])
def test_19_a_ring_too_deep_for_five_query_tokens_says_what_to_lower(recipe):
    """The ring that is left open fits; one more stage does not."""
    stages = STAGES_OF_64_COLUMNS[recipe]
    assert kernel_of(recipe, query_tokens=5).mainloop.ring.stages == stages
    with pytest.raises(ResourceError, match=r"bytes of shared memory, [\d,]+ too many") as caught:
        kernel_of(recipe, {"ring.stages": stages + 1}, query_tokens=5)
    assert "lower ring.stages" in str(caught.value) and len(str(caught.value).splitlines()) <= 10


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8, FP8_PER_TOKEN])
@pytest.mark.parametrize("tokens", [0, 65])
def test_19_other_numbers_of_query_tokens(recipe, tokens):
    with pytest.raises(SpecError, match=f"problem.query_tokens: query_tokens cannot be {tokens}") as caught:
        tle_attn.plan(recipe, **GEOMETRY, query_tokens=tokens)
    assert "allowed  an integer from 1 to 64" in str(caught.value) and "because  query tokens per request" in str(caught.value)


@pytest.mark.parametrize("tokens", [1.0, True, "1"])
def test_19_what_is_no_number_of_query_tokens(tokens):
    with pytest.raises(SpecError, match=re.escape(f"problem.query_tokens: {written(tokens)} is not an integer")):
        tle_attn.plan(DYNAMIC, **GEOMETRY, query_tokens=tokens)


def test_19_rows_of_another_number_of_query_tokens():
    """A plan for one token, given the rows of six: the error names what was found and what is supported."""
    problem = make_decode_problem([5, 64], query_tokens=6)
    plan = tle_attn.plan(DYNAMIC, **GEOMETRY)
    with pytest.raises(InputError, match=r"q: 12 rows for a batch of 2 are 6 query tokens per request.*supported: query_tokens . group <= 64"):
        plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)


@pytest.mark.parametrize("recipe,group,tokens", [
    *((DYNAMIC, group, 1) for group in GROUPS if group != 8), *((FP8, group, 2) for group in GROUPS if group % 3 == 0), (FP8_PER_TOKEN, 1, 1),
    (DYNAMIC, 7, 3), (DYNAMIC, 16, 4), (FP8, 16, 4), (FP8_PER_TOKEN, 16, 3),
])  # fmt: skip
def test_20_groups(recipe, group, tokens, seed):
    """Padding rows are inert: rows are right, and nothing is written beside them (the emulation refuses it).  More: tests/components/mainloops."""
    kernel = kernel_of(recipe, query_tokens=tokens, group=group)
    problem = problem_for(kernel, (1, 70, 0, 64), kv_heads=2, seed=seed)
    check(kernel, problem, run(kernel, problem))


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8, FP8_PER_TOKEN])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("tokens", range(1, 6))
def test_20_every_group_has_a_kernel(recipe, group, tokens):
    """As far as its query rows are the columns of one product."""
    if group * tokens > 64:
        with pytest.raises(SpecError, match="query_tokens \\* group <= 64"):
            kernel_of(recipe, query_tokens=tokens, group=group)
    else:
        assert kernel_of(recipe, query_tokens=tokens, group=group).problem.rows == group * tokens


@pytest.mark.parametrize("recipe", [FP8])
def test_20_a_group_of_64(recipe, seed):
    kernel = kernel_of(recipe, group=64)
    problem = problem_for(kernel, (1, 70), seed=seed)
    check(kernel, problem, run(kernel, problem))


@pytest.mark.parametrize("heads,message", [
    ((128, 1), "128 query rows"), ((65, 1), "65 query rows"), ((7, 2), "query_heads: 7 is no multiple of kv_heads 2"), ((4, 8), "query_heads: 4 is no multiple of kv_heads 8"),
])  # fmt: skip
def test_20_groups_that_do_not_fit(heads, message):
    with pytest.raises((SpecError, InputError), match=message):
        tle_attn.plan(DYNAMIC, **GEOMETRY | {"query_heads": heads[0], "kv_heads": heads[1]})


@pytest.mark.parametrize("recipe,page", [(DYNAMIC, 32), (FP8_PER_TOKEN, 128)])
def test_21_pages(recipe, page, seed):
    """64 and 16 are those of other cases."""
    kernel = kernel_of(recipe, page=page)
    problem = problem_for(kernel, (1, page - 1, page, page + 1, 0, 200), seed=seed)
    check(kernel, problem, run(kernel, problem))


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8, FP8_PER_TOKEN])
@pytest.mark.parametrize("page", [1, 8, 48, 256, 2848])
def test_21_pages_that_do_not_fill_tiles(recipe, page):
    with pytest.raises(SpecError) as caught:
        tle_attn.plan(recipe, **GEOMETRY, page=page)
    text = str(caught.value)
    assert f"problem.page: page cannot be {page}" in text and "allowed  16, 32, 64, 128" in text and "because  a key tile has 64 tokens" in text


def test_21_a_cache_of_other_pages_than_the_plan():
    problem = make_decode_problem([5, 64], page=16)
    with pytest.raises(InputError, match=r"k_cache: shape .* where \[pages, page, kv_heads, head_dim\] = \(any, 64, 1, 128\) is wanted"):
        tle_attn.plan(DYNAMIC, **GEOMETRY).run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)


@pytest.mark.parametrize("recipe,head_dim,options", [(D64, 64, {}), (DYNAMIC, 256, {"ring.stages": 2, "mainloop.ctas_per_sm": 1})])
def test_22_head_dims(recipe, head_dim, options, seed):
    kernel = kernel_of(recipe, options, head_dim=head_dim)
    problem = problem_for(kernel, LENGTHS, kv_heads=2, seed=seed)
    check(kernel, problem, run(kernel, problem))


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8])
@pytest.mark.parametrize("head_dim", [80, 512])
def test_22_head_dims_that_no_tile_holds(recipe, head_dim):
    with pytest.raises(SpecError) as caught:
        tle_attn.plan(recipe, **GEOMETRY, head_dim=head_dim)
    text = str(caught.value)
    assert f"problem.head_dim: head_dim cannot be {head_dim}" in text and "allowed  64, 96, 128, 192, 256" in text and "because  " in text
    assert len(text.splitlines()) <= 10


def test_22_a_head_dim_that_fits_no_ring_shows_the_sum():
    with pytest.raises(ResourceError) as caught:
        kernel_of(DYNAMIC, {"ring.stages": 3}, head_dim=256)
    text = str(caught.value)
    assert kernel_of(DYNAMIC, head_dim=256).mainloop.ring.stages == 1, "the ring that is left open fits"
    assert "k_ring bf16[3, 64, 256] 98,304 B" in text and "sum 203,136 B" in text and "115,712 B for each of 2 CTAs" in text
    assert len(text.splitlines()) <= 10


@pytest.mark.parametrize("recipe,head_dims,what,allowed", [
    (FP8, (64, 192, 256), "v_operand.block: the fp8 V operand cannot take heads of {} values", "96, 128"),
    (FP8_PER_TOKEN, (64, 96, 192, 256), "problem.head_dim: K scales per token and head are for head_dim 128, not {}", "128"),
])  # fmt: skip
def test_22_head_dims_that_fp8_does_not_take(recipe, head_dims, what, allowed):
    for head_dim in head_dims:
        with pytest.raises(SpecError, match=what.format(head_dim)) as caught:
            tle_attn.plan(recipe, **GEOMETRY, head_dim=head_dim)
        lines = str(caught.value).splitlines()
        assert f"  allowed  {allowed}" in lines and len(lines) <= 10
