"""Softmax scale: scores times scale * log2(e), so that the softmax works in base 2."""

from __future__ import annotations

import math

import torch
from attrs import frozen

from tle_attn.dialect import jit
from tle_attn.spec import Argument, Block, Problem


@frozen(kw_only=True)
class SoftmaxScale(Block):
    """Multiplies by the argument `scale_log2` = softmax scale * log2(e); the softmax scale is 1 / sqrt(head_dim) unless `run` is told otherwise."""

    KIND = "scale"
    NAME = "softmax"
    HOOKS = {"score": "scale_scores"}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (Argument("scale_log2", "f32", "softmax scale * log2(e)"),)

    @staticmethod
    def reference(s: torch.Tensor, scale_log2: float) -> torch.Tensor:
        """Semantic definition, float64: base-2 logits."""
        return s.double() * scale_log2


LOG2E = math.log2(math.e)


@jit
def scale_scores(args, s, key, query, head):
    """Base-2 logits."""
    return s * args.scale_log2
