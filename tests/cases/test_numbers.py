"""Cases 13 to 17: weights far apart, lengths around tiles, the log-sum-exp of equal scores, the soft cap's place, the V transpose."""

import math
from itertools import pairwise

import pytest
import torch
from attrs import evolve

from tests.cases.helpers import (
    DYNAMIC,
    FAMILY,
    FP8,
    FP8_PER_TOKEN,
    KV_PER_TOKEN,
    PARTS,
    SOFT_CAP,
    STATIC,
    UNSPLIT,
    check,
    dominant_key,
    kernel_of,
    launch,
    plan_for,
    problem_for,
    run,
    unit_scales,
)
from tle_attn.testing import compare, rms_of_rows
from tle_attn.verify import tolerance


@pytest.mark.parametrize("recipe,options", [
    (STATIC, {}), (FP8, {}), (FP8, {"softmax.maximum": "exact"}),
], ids=["bf16", "fp8", "fp8 exact"])  # fmt: skip
def test_13_one_dominant_key_among_diffuse_ones(recipe, options, seed):
    """V = 1 gives 1, wherever between 7 and 14 the dominant logit stands over 8192 others of standard deviation 1; nothing is split."""
    kernel = kernel_of(recipe, UNSPLIT | options)
    problem = dominant_key(problem_for(kernel, (8193,), seed=seed, poison=False), seed)
    out, _ = run(kernel, problem, softmax_scale=1.0)
    assert (out.float() - 1).abs().max() < 0.02


@pytest.mark.parametrize("recipe", [STATIC, FP8, KV_PER_TOKEN])
def test_14_lengths_around_tiles_and_spreads_of_scores(recipe, seed):
    """Decode's side of the case: cosine at least 0.998, and an error that does not grow with the spread.

    It may fall: the wider the spread, the more the keys near the maximum count, whose P e4m3 holds exactly.
    """
    kernel = kernel_of(recipe)
    errors = []
    for logit_std in (0.25, 0.5, 1.0, 2.0):
        problem = problem_for(kernel, (127, 128, 129, 255, 256, 257), seed=seed, logit_std=logit_std)
        out, _ = run(kernel, problem)
        expected, _ = problem.reference(p_quant=None)
        assert torch.cosine_similarity(out.double(), expected, dim=-1).min() >= 0.998
        errors.append(rms_of_rows(out, expected))
    assert max(errors) < tolerance(kernel)[0], errors
    assert all(wider < 1.5 * narrower for narrower, wider in pairwise(errors)), errors


@pytest.mark.parametrize("recipe,options,tokens", [
    *((recipe, {}, 1) for recipe in (*FAMILY, KV_PER_TOKEN)), *((recipe, PARTS, 3) for recipe in (DYNAMIC, FP8)), (FP8, {"epilogue.lse": "2"}, 1),
])  # fmt: skip
def test_15_lse_of_equal_scores(recipe, options, tokens, seed):
    """q = 0 and 256 keys: ln 256 = 5.545177, log2 256 = 8, in one piece and in four, for the query token that sees all of them."""
    kernel = kernel_of(recipe, options, query_tokens=tokens)
    problem = problem_for(kernel, (256, 256), seed=seed)
    plan = plan_for(kernel, evolve(problem, q=torch.zeros_like(problem.q)))
    _, lse = launch(plan, evolve(problem, q=torch.zeros_like(problem.q)))
    want = 8.0 if kernel.mainloop.epilogue.lse == "2" else 5.545177
    assert (lse[tokens - 1 :: tokens] - want).abs().max() < 2e-6


def test_16_the_cap_comes_before_the_mask(seed):
    """A small cap: were it applied to masked scores, -cap would let every masked key in."""
    kernel = kernel_of(SOFT_CAP, {"score[0].cap": 2.0}, query_tokens=2)
    problem = problem_for(kernel, (1, 2, 65, 130), seed=seed, logit_std=5.0)
    result = run(kernel, problem)
    check(kernel, problem, result)
    with pytest.raises(AssertionError):
        compare(result[0], problem.reference()[0], rms=0.05)  # the cap matters here


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8, FP8_PER_TOKEN, KV_PER_TOKEN])
@pytest.mark.parametrize("pattern", ["token", "dim"])
def test_17_every_byte_of_v_at_its_place(recipe, pattern):
    """Query head h of sequence b finds token 8 b + h alone, so its output is that token's row of V, exactly: V's bytes are the token's or the dim's number."""
    kernel = kernel_of(recipe)
    problem = unit_scales(problem_for(kernel, (64,) * 8, poison=False))
    one_hot, dtype = torch.eye(64, 128) * 64.0, problem.q.dtype
    number = torch.arange(64)[:, None].expand(64, 128) if pattern == "token" else torch.arange(128).clamp(max=126)[None, :].expand(64, 128)
    v = number.to(torch.uint8).view(torch.float8_e4m3fn) if dtype == torch.float8_e4m3fn else number.to(dtype)
    k_cache, v_cache = problem.k_cache.clone(), problem.v_cache.clone()
    pages = problem.block_ids[:, 0].long()
    k_cache[pages, :, 0], v_cache[pages, :, 0] = one_hot.to(dtype), v
    problem = evolve(problem, q=one_hot.to(dtype).view(8, 8, 128), k_cache=k_cache, v_cache=v_cache)
    out, lse = run(kernel, problem)
    assert torch.equal(out.float().view(64, 128), v.float())
    assert (lse - 64.0 * 64.0 / math.sqrt(128)).abs().max() < 1e-3
