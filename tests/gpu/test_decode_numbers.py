"""Numerical behaviour of decode kernels on the GPU."""

import math
from itertools import pairwise

import pytest
import torch
from attrs import evolve

from tests.cases.helpers import dominant_key
from tests.gpu import kernels
from tests.gpu.helpers import check, problem_for, run
from tle_attn.testing import make_decode_problem, rms_of_rows
from tle_attn.verify import quant_type, tolerance

CONFIGS = (kernels.config(kernels.DYNAMIC), kernels.config(kernels.STATIC))
FP8_CONFIGS = (kernels.config(kernels.FP8), kernels.config(kernels.FP8_PER_TOKEN), kernels.config(kernels.KV_PER_TOKEN))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.label)
def test_one_dominant_key_among_diffuse_ones(config):
    """V = 1 everywhere gives 1, whatever the weights."""
    problem = problem_for(config, (8193, 8193, 8193), seed=40, logit_std=0.1)
    page = problem.block_ids[0, 17]
    problem.k_cache[page.long(), 5] = problem.q[0, 0] / problem.q[0, 0].float().norm() * 100
    problem = evolve(problem, v_cache=torch.where(problem.v_cache.isnan(), problem.v_cache, 1.0))
    out, _ = run(config.plan(3), problem)
    assert (out.float() - 1).abs().max() < 0.02


@pytest.mark.parametrize("config", kernels.UNSPLIT, ids=lambda c: c.label)
def test_dominant_logits_of_every_size(config):
    """The same without a split, which would leave the dominant key with fewer others."""
    problem = dominant_key(make_decode_problem([8193], dtype=config.kernel().problem.dtype.value, quant=quant_type(config.kernel()), poison=False), 46).to("cuda")
    out, _ = run(config.plan(1), problem, softmax_scale=1.0)
    assert (out.float() - 1).abs().max() < 0.02


@pytest.mark.parametrize("config", CONFIGS + FP8_CONFIGS, ids=lambda c: c.label)
def test_error_does_not_grow_with_the_spread_of_scores(config):
    lengths = (127, 128, 129, 255, 256, 257)
    errors = []
    for logit_std in (0.25, 0.5, 1.0, 2.0):
        problem = problem_for(config, lengths, seed=41, logit_std=logit_std)
        out, _ = run(config.plan(len(lengths)), problem)
        want, _ = problem.reference(p_quant=None)
        assert torch.cosine_similarity(out.double(), want, dim=-1).min() >= 0.998
        errors.append(rms_of_rows(out, want))
    # it may fall: P of the keys near the maximum, which count the more the wider the spread, is exact in e4m3
    assert max(errors) < tolerance(config.kernel())[0], errors
    assert all(wider < 1.5 * narrower for narrower, wider in pairwise(errors)), errors


@pytest.mark.parametrize("config", kernels.LSE, ids=lambda c: c.label)
def test_lse_of_equal_scores(config):
    """q = 0 and 256 keys: ln 256 or log2 256, for the last query token, which sees all of them."""
    problem = problem_for(config, (256, 256), seed=42)
    problem = evolve(problem, q=torch.zeros_like(problem.q))
    _, lse = run(config.plan(2), problem)
    n = config.query_tokens
    want = 8.0 if dict(config.options)["epilogue.lse"] == "2" else 8 * math.log(2)
    assert (lse[n - 1 :: n] - want).abs().max() < 1e-5


@pytest.mark.parametrize("logit_std", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("config", kernels.MAXIMA, ids=lambda c: c.label)
def test_scores_of_great_size(config, logit_std):
    """The running maximum moves often and far; nothing overflows, and in the end the largest score wins alone."""
    check(config, problem_for(config, (300, 5000), seed=43, logit_std=logit_std))
