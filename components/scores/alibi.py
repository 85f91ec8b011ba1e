"""ALiBi: a bias that falls linearly with the distance between query and key, with a slope for each query head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen

from tle_attn.dialect import absolute, jit, load
from tle_attn.oracle import steps
from tle_attn.spec import Argument, Block, Constant, Problem


@frozen(kw_only=True)
class Alibi(Block):
    """s - slope[head] * |query - key| in natural units; `run` takes alibi_slopes, float32 [query heads]."""

    KIND = "score"
    NAME = "alibi"
    HOOKS = {"score": "alibi_bias", "head_value": "alibi_slope"}
    RELATIVE = True

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"LOG2_E": Constant(math.log2(math.e), "base-2 units in a natural unit")}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (Argument("alibi_slopes", "*f32", "bias per token of each query head [query heads]", shape=("query_heads",)),)

    def example_arguments(self, case: Any, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Slopes of all sizes in use, 2**-8 to 1."""
        return {"alibi_slopes": torch.exp2(-8 * torch.rand(case.q.shape[1], generator=generator))}

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"score_steps": (steps.Alibi(given.get("alibi_slopes")),)}

    @staticmethod
    def reference(s: torch.Tensor, distance: torch.Tensor, of_head: torch.Tensor) -> torch.Tensor:
        """Semantic definition of `alibi_bias`, float64; s and the result in base-2 units, of_head what `alibi_slope` gives: -slope * log2(e)."""
        return s.double() + of_head.double() * distance.double().abs()


@jit
def alibi_slope(args, value, head):
    """Of a token of distance, in base-2 units."""
    return load(args.alibi_slopes + head) * (0.0 - LOG2_E)


@jit
def alibi_bias(args, s, distance, of_head):
    """s in base-2 units; a tree's keys may lie behind their query."""
    return s + of_head * absolute(distance)
