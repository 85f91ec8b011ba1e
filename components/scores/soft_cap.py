"""Logits soft cap: cap * tanh(logit / cap), before any mask."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from attrs import field, frozen

from tle_attn.dialect import exp2, jit, rcp
from tle_attn.oracle import steps
from tle_attn.spec import Block, Constant, Problem
from tle_attn.spec.problem import positive_finite


@frozen(kw_only=True)
class SoftCap(Block):
    """Soft cap of the logits (Gemma 2 uses 50 for attention).

    tanh comes from exp2 and a reciprocal, 1 - 2 / (1 + 2**(2 log2(e) x)): its absolute error is about 1e-7, where tanh.approx.f32 has a relative error of
    5e-4, which a cap of 50 would turn into 2.5 % of a weight.
    """

    KIND = "score"
    NAME = "soft_cap"
    HOOKS = {"score": "soft_cap_scores"}
    RELATIVE = True

    cap: float = field(validator=positive_finite("logits are capped to (-cap, cap), with an error of 1e-7 cap; leave the block out to switch the cap off", 1e4))

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "CAP_LOG2": Constant(self.cap * math.log2(math.e), "soft cap in base-2 units"),
            "TWO_OVER_CAP": Constant(2.0 / self.cap, "2 log2(e) / CAP_LOG2 in base-2 units of the logit"),
        }

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"score_steps": (steps.SoftCap(self.cap),)}

    def reference(self, s: torch.Tensor) -> torch.Tensor:
        """Semantic definition, float64; s and the result in base-2 units."""
        cap = self.cap * math.log2(math.e)
        return cap * torch.tanh(s.double() / cap)


@jit
def soft_cap_scores(args, s, key, query, head):
    """s in base-2 units; 2**(2 log2(e) logit / cap) = exp2(s * 2 / cap)."""
    return CAP_LOG2 - 2.0 * CAP_LOG2 * rcp(1.0 + exp2(s * TWO_OVER_CAP))
