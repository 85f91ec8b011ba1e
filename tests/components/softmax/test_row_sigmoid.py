"""Sigmoid weights of prefill against their definition: factors of rows, masked keys, the range of the element type; a step changes nothing else."""

import math

import pytest
import torch

from tle_attn.components.softmax.row_sigmoid import RowSigmoid
from tle_attn.spec import Argument, DType, Problem
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

TEXT = """
@jit
def test(args):
    s = mma_zeros(64, TILE, DTYPE)
    at = (rows(s) * TILE)[:, None] + cols(s)[None, :]
    tile = load(args.s + at)
    m = larger_maximum(tile, full_rows(s, float("-inf")))
    p, alpha = weights(tile, m, m, load(args.factor + rows(s)), True)
    l = add_weights(thread_sums(s), alpha, p)
    store(args.p + at, p)
    store(args.alpha + rows(p), alpha)
    total = like_rows(row_sums(l), p)
    store(args.l + rows(p), denominator(args, total, m, 0))
"""


@pytest.mark.parametrize("bias", [0.0, -6.0, 2.5])
@pytest.mark.parametrize("dtype,top", [(DType.BF16, 1.0), (DType.FP8, 256.0)])
def test_weights(target, device, seed, dtype, top, bias):
    problem, block = Problem(dtype=dtype), RowSigmoid(bias=bias)
    s, factor = 20 * torch.randn(64, 128), torch.rand(64) * 0.3 + 0.01
    s[torch.rand(s.shape) < 0.2] = -math.inf
    s[0], s[1] = 1e6, -1e6
    outputs = {"p": torch.empty(64, 128), "alpha": torch.empty(64), "l": torch.empty(64)}
    outputs = {name: torch.full_like(t, math.nan).to(device) for name, t in outputs.items()}
    arguments = [Argument(name, "*f32", "") for name in ("s", "factor", *outputs)]
    run_kernel(mini_kernel(TEXT, block, problem=problem, arguments=arguments, companions=prefill_companions(problem)), {"s": s.to(device), "factor": factor.to(device), **outputs}, target=target)
    p = outputs["p"].cpu().double()
    expected = block.reference(s, factor, problem)
    assert torch.allclose(expected, top * torch.sigmoid(s.double() * factor.double()[:, None] * math.log(2.0) + bias))
    assert (p - expected).abs().max() < 1e-5 * top and not p[s == -math.inf].any() and (p[0] == top).all() and not p[1].any()
    assert (outputs["alpha"] == 1.0).all() and (outputs["l"] == top).all()
