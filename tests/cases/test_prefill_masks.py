"""Cases 7 to 11 of prefill: sequences without keys or queries, queries before the first key, tiles that a block mask drops."""

import math

import pytest
import torch
from attrs import evolve

from tests.cases.helpers import MASKED_PREFILL, PAGED_PREFILL, PREFILL, bits, check, kernel_of, launch, plan_for, prefill_problem_for, run
from tle_attn.errors import InputError


@pytest.mark.parametrize("recipe", PAGED_PREFILL)
def test_7_empty_sequences_between_short_ones(recipe, seed):
    """Batch 24, no key and five keys in turns, a query each; a batch of nothing but sequences without keys."""
    kernel = kernel_of(recipe, group=2)
    problem = prefill_problem_for(kernel, ((1, 0), (1, 5)) * 12, seed=seed)
    out, lse = run(kernel, problem)
    assert not out[::2].any() and (lse[::2] == -math.inf).all()
    check(kernel, problem, (out, lse))
    out, lse = run(kernel, prefill_problem_for(kernel, ((3, 0), (130, 0)), seed=seed))
    assert not out.any() and (lse == -math.inf).all()


@pytest.mark.parametrize("recipe", PREFILL)
def test_7_nothing_to_do(recipe):
    """No sequence has a query; there is no row at all; there is no sequence."""
    kernel = kernel_of(recipe, group=1)
    problem = prefill_problem_for(kernel, ((0, 0), (0, 0), (0, 0)), padding_rows=2)
    out, lse = run(kernel, problem)
    assert out.isnan().all() and lse.isnan().all()
    cut = evolve(problem, q=problem.q[:0])
    assert launch(plan_for(kernel, problem), cut)[0].shape == (0, 1, 128)


@pytest.mark.parametrize("recipe", PAGED_PREFILL)
def test_8_a_sequence_without_queries(recipe, seed):
    """cu_seqlens_q [0, 150, 150, 300] and 100 keys each: the second sequence has no query, the others' first 50 see no key."""
    kernel = kernel_of(recipe, group=1)
    problem = prefill_problem_for(kernel, ((150, 100), (0, 100), (150, 100)), seed=seed)
    assert problem.cu_seqlens_q.tolist() == [0, 150, 150, 300]
    out, lse = run(kernel, problem)
    check(kernel, problem, (out, lse))
    assert not out[:50].any() and not out[150:200].any()


@pytest.mark.parametrize("recipe", PAGED_PREFILL + MASKED_PREFILL)
def test_9_queries_before_the_first_key(recipe, seed):
    kernel = kernel_of(recipe, group=2)
    problem = prefill_problem_for(kernel, ((64, 31),), seed=seed, **({"mask_density": 1.0} if recipe in MASKED_PREFILL else {}))
    if problem.block_mask is not None:
        problem.block_mask.fill_(1)
    out, lse = run(kernel, problem)
    assert not out[:33].any() and (lse[:33] == -math.inf).all() and lse[33:].isfinite().all()
    check(kernel, problem, (out, lse))


@pytest.mark.parametrize("recipe", MASKED_PREFILL)
class TestBlockMask:
    def test_10_query_tiles_of_which_nothing_is_kept(self, recipe, seed):
        """The first, a middle and the last query tile of different heads; tiles after them are right."""
        kernel = kernel_of(recipe, group=2)
        problem = prefill_problem_for(kernel, ((300, 400), (129, 129)), seed=seed, mask_density=0.7)
        problem.block_mask[0, :, 0], problem.block_mask[0, 1, 1], problem.block_mask[1, 0, 1] = 0, 0, 0
        out, lse = run(kernel, problem)
        check(kernel, problem, (out, lse))
        for rows, heads in ((slice(0, 128), slice(None)), (slice(128, 256), 1), (slice(300 + 128, 300 + 129), 0)):
            assert not out[rows, heads].any() and (lse[rows, heads] == -math.inf).all()

    def test_10_nothing_is_kept_anywhere(self, recipe):
        kernel = kernel_of(recipe, group=2)
        out, lse = run(kernel, prefill_problem_for(kernel, ((300, 400), (3, 70)), mask_density=0.0))
        assert not out.any() and (lse == -math.inf).all()

    def test_11_a_mask_shorter_than_the_causal_range(self, recipe, seed):
        """Three key tiles for 640 keys: tile 3 counts as kept, tile 4 as dropped; the strict mode refuses."""
        kernel = kernel_of(recipe, group=2)
        problem = prefill_problem_for(kernel, ((384, 640),), seed=seed, mask_columns=3)
        result = run(kernel, problem)
        check(kernel, problem, result)
        long = torch.cat([problem.block_mask, torch.tensor([1, 0], dtype=torch.uint8).expand(1, 2, 3, 2)], 3)
        assert bits(run(kernel, evolve(problem, block_mask=long))[0]) == bits(result[0])
        out = problem.new_output()
        with pytest.raises(InputError, match="block_mask: 3 key tiles, but sequence 0 has 640 keys, 5 tiles of 128"):
            run(kernel, problem, out=out, debug=True, strict_block_mask=True)
        assert out.isnan().all() and issubclass(InputError, ValueError)

    def test_11_any_byte_but_zero_keeps(self, recipe, seed):
        kernel = kernel_of(recipe, group=1)
        problem = prefill_problem_for(kernel, ((130, 300),), seed=seed)
        ones = evolve(problem, block_mask=(problem.block_mask != 0).to(torch.uint8))
        assert bits(run(kernel, problem)[0]) == bits(run(kernel, ones)[0])

    def test_11_strided_masks(self, recipe, seed):
        """A view of a larger mask: rows, heads and sequences further apart."""
        kernel = kernel_of(recipe, group=2)
        problem = prefill_problem_for(kernel, ((130, 300), (200, 257)), seed=seed)
        b, h, rows, columns = problem.block_mask.shape
        wide = torch.full((b + 1, h + 2, rows + 1, columns + 3), 255, dtype=torch.uint8)
        view = wide[1:, 1 : h + 1, :rows, 2 : columns + 2]
        view.copy_(problem.block_mask)
        assert bits(run(kernel, evolve(problem, block_mask=view))[0]) == bits(run(kernel, problem)[0])

    @pytest.mark.parametrize("width", [1, 31, 32, 33, 64])
    @pytest.mark.parametrize("pattern", ["all", "alternating", "last", "first"])
    def test_18_widths_around_a_warp(self, recipe, width, pattern, seed):
        """One query over `width` key tiles."""
        kernel = kernel_of(recipe, group=1)
        problem = prefill_problem_for(kernel, ((1, 128 * width),), seed=seed, mask_density=1.0)
        kept = {"all": [True] * width, "alternating": [t % 2 == 1 for t in range(width)], "last": [t == width - 1 for t in range(width)], "first": [t == 0 for t in range(width)]}
        problem.block_mask[0, 0, 0] = torch.tensor(kept[pattern]).to(torch.uint8)
        check(kernel, problem, run(kernel, problem))
