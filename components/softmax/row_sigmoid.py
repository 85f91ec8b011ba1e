"""Sigmoid weights of prefill: each key's weight is the sigmoid of its logit; a step has no maximum, no sum and no rescale."""

from __future__ import annotations

import math

import torch
from attrs import frozen

from tle_attn.components.softmax.rows import step_functions
from tle_attn.components.softmax.sigmoid import SigmoidWeights, sigmoid_denominator
from tle_attn.dialect import exp2, full_rows, jit, rcp
from tle_attn.spec import Constant, Function, Problem

__all__ = ["RowSigmoid", "sigmoid_denominator"]


@frozen(kw_only=True)
class RowSigmoid(SigmoidWeights):
    """What `sigmoid` is to decode, with the same options, one query a row."""

    KIND = "softmax"
    NAME = "row_sigmoid"

    def constants(self, problem: Problem) -> dict[str, Constant]:
        exponent = self.exponent(problem)
        weight = {"P_EXPONENT": Constant(float(exponent), "P carries 2**P_EXPONENT"), "P_UNIT": Constant(2.0**-exponent, "2**-P_EXPONENT")}
        return super().constants(problem) | weight

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return step_functions(problem)

    def reference(self, s: torch.Tensor, factor: torch.Tensor, problem: Problem) -> torch.Tensor:  # type: ignore[override]
        """Semantic definition of `weights`, float64: P; the factor of what was before is 1."""
        return 2.0 ** self.exponent(problem) * torch.sigmoid(s.double() * factor.double()[:, None] / math.log2(math.e) + self.bias)


@jit
def larger_maximum(s, m):
    """Weights refer to nothing."""
    return full_rows(s, 0.0)


@jit
def weights(s, m, m_new, factor, masked: constexpr):
    """P of a tile, 0 for a masked key, whose score is -inf.  m_new is 0, and known only when it is this consumer's turn."""
    return rcp(P_UNIT + exp2((m_new - SIGMOID_BIAS - P_EXPONENT)[:, None] - s * factor[:, None])), full_rows(s, 1.0)


@jit
def add_weights(l, alpha, p):
    """There is no sum."""
    return l


@jit
def thread_sums(p):
    """The same."""
    return full_rows(p, 0.0)


@jit
def row_sums(l):
    """0 for each row."""
    return l
