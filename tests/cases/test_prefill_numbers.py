"""Cases 13 to 17 of prefill: weights far apart, lengths around tiles, the log-sum-exp of equal scores, the V transpose."""

import math
from itertools import pairwise

import pytest
import torch
from attrs import evolve

from tests.cases.helpers import PAGED_PREFILL, PREFILL, dominant_key, kernel_of, prefill_problem_for, run, unit_scales
from tle_attn.testing import rms_of_rows
from tle_attn.verify import tolerance


@pytest.mark.parametrize("recipe", PAGED_PREFILL)
def test_13_one_dominant_key_among_diffuse_ones(recipe, seed):
    """V = 1 gives 1, wherever between 7 and 14 the dominant logit stands over 8192 others of standard deviation 1."""
    kernel = kernel_of(recipe)
    problem = dominant_key(prefill_problem_for(kernel, ((1, 8193),), seed=seed, poison=False), seed)
    out, _ = run(kernel, problem, softmax_scale=1.0)
    assert (out.float() - 1).abs().max() < 0.02


@pytest.mark.parametrize("recipe", PREFILL)
def test_14_lengths_around_tiles_and_spreads_of_scores(recipe, seed):
    kernel = kernel_of(recipe, group=1)
    errors = []
    for logit_std in (0.25, 0.5, 1.0, 2.0):
        problem = prefill_problem_for(kernel, [(n, n) for n in (127, 128, 129, 255, 256, 257)], seed=seed, logit_std=logit_std)
        out, _ = run(kernel, problem)
        expected, _ = problem.reference(p_quant=None)
        assert torch.cosine_similarity(out.double(), expected, dim=-1).min() >= 0.998
        errors.append(rms_of_rows(out, expected))
    assert max(errors) < tolerance(kernel)[0], errors
    assert all(wider < 1.5 * narrower for narrower, wider in pairwise(errors)), errors


@pytest.mark.parametrize("base,want", [("e", 5.545177), ("2", 8.0)])
@pytest.mark.parametrize("recipe", PREFILL)
def test_15_lse_of_equal_scores(recipe, base, want, seed):
    """q = 0: the last of a sequence's queries sees 256 keys: ln 256, log2 256."""
    kernel = kernel_of(recipe, {"epilogue.lse": base}, group=1)
    pairs = [(256, 256)] if recipe.endswith("contiguous") else [(3, 256), (1, 256)]
    problem = prefill_problem_for(kernel, pairs, seed=seed)
    _, lse = run(kernel, evolve(problem, q=torch.zeros_like(problem.q)))
    assert (lse[problem.cu_seqlens_q[1:].long() - 1] - want).abs().max() < 2e-6


@pytest.mark.parametrize("pattern", ["token", "dim"])
@pytest.mark.parametrize("recipe", PAGED_PREFILL)
def test_17_every_byte_of_v_at_its_place(recipe, pattern):
    """The query of token t of 128 finds token t alone, so its output is that token's row of V, exactly: V's bytes are the token's or the dim's number."""
    kernel = kernel_of(recipe, group=1)
    problem = unit_scales(prefill_problem_for(kernel, ((128, 128),), poison=False))
    one_hot, dtype = torch.eye(128) * 64.0, problem.q.dtype
    number = torch.arange(128).clamp(max=126)[:, None].expand(128, 128) if pattern == "token" else torch.arange(128).clamp(max=126)[None, :].expand(128, 128)
    v = number.to(torch.uint8).view(torch.float8_e4m3fn) if dtype == torch.float8_e4m3fn else number.to(dtype)
    k_cache, v_cache = problem.k_cache.clone(), problem.v_cache.clone()
    pages = problem.block_ids[0, : 128 // kernel.problem.page].long()
    k_cache[pages, :, 0], v_cache[pages, :, 0] = one_hot.to(dtype).view(len(pages), -1, 128), v.view(len(pages), -1, 128)
    out, lse = run(kernel, evolve(problem, q=one_hot.to(dtype)[:, None], k_cache=k_cache, v_cache=v_cache))
    assert torch.equal(out.float()[:, 0], v.float())
    assert (lse - 64.0 * 64.0 / math.sqrt(128)).abs().max() < 1e-3
