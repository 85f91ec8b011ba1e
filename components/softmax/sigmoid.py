"""Sigmoid attention: each key's weight is the sigmoid of its logit, whatever the other keys are; there is no maximum, no sum and nothing to normalise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from attrs import field, frozen

from tle_attn.components.softmax.online import step_functions
from tle_attn.dialect import exp2, fdiv, full_cols, jit
from tle_attn.errors import SpecError, written
from tle_attn.spec import Block, Constant, Function, Problem
from tle_attn.spec.types import DType


def finite(instance: Any, attribute: Any, value: Any) -> None:
    """attrs validator: a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SpecError(f"{attribute.name} cannot be {written(value)}", key=attribute.name, value=value, allowed="a finite number", reason="it is added to every logit")


@frozen(kw_only=True)
class SigmoidWeights(Block):
    """out = sum of sigmoid(logit + bias) v.  State: m [N] stays 0 and l stays 0, so that partial results of a split sequence just add up.

    Attributes:
        bias: added to every logit, natural units; -log(n) starts a model of n keys where softmax would (Ramapuram et al., "Theory, Analysis, and Best
            Practices for Sigmoid Self-Attention").

    fp8 weights carry 2**8, which spends e4m3's range; the end divides by it.  No key is the largest, so that a weight below 2**-14 is a multiple of
    2**-17 whatever the others are: choose FP8 where the weights that matter are above that.
    """

    KIND = "softmax"
    NAME = "sigmoid"
    NORMALISED = False
    HOOKS = {"denominator": "sigmoid_denominator"}

    bias: float = field(default=0.0, validator=finite)

    def exponent(self, problem: Problem) -> int:
        return 8 if problem.dtype is DType.FP8 else 0

    def constants(self, problem: Problem) -> dict[str, Constant]:
        top = 2.0 ** self.exponent(problem)
        return {
            "SIGMOID_BIAS": Constant(self.bias * math.log2(math.e), "added to every logit, base-2 units"),
            "P_TOP": Constant(top, "weight of a key whose logit is infinite, as it is stored"),
        }

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"sigmoid_bias": self.bias}

    def weight_unit(self, problem: Problem) -> float:
        return 2.0 ** -(9 + self.exponent(problem)) if problem.dtype is DType.FP8 else 0.0

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return step_functions(problem)

    def reference(self, s: torch.Tensor, m: torch.Tensor, l: torch.Tensor, o: torch.Tensor, problem: Problem) -> tuple[torch.Tensor, ...]:
        """Semantic definition of `softmax_step`, float64: the state, unchanged, and P^T as published."""
        weights = torch.sigmoid(s.double() / math.log2(math.e) + self.bias)
        return m, l, o, (2.0 ** self.exponent(problem) * weights).T


@jit
def first_reference(s):
    """Weights refer to nothing."""
    return full_cols(s, 0.0)


@jit
def softmax_step(args, s, m, l, o, p_tile, ratio):
    """One key tile: P in shared memory for the product; a masked key's logit is -inf, and its weight 0."""
    p = fdiv(P_TOP, 1.0 + exp2(0.0 - (s + SIGMOID_BIAS)))
    publish_p(p_tile, tile_weights(args, p, ratio, P_TOP), P_TOP)
    return m, l, o


@jit
def sigmoid_denominator(args, l, m, head):
    """l is 0; what the output is divided by is what the weights carry."""
    return l + P_TOP
