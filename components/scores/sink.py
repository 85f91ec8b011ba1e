"""Attention sink: one more logit for each query head, which has no key and no value; it takes its part of the weights and no more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen

from tle_attn.dialect import exp2, jit, load, log2, maximum
from tle_attn.spec import Argument, Block, Constant, Problem


@frozen(kw_only=True)
class Sink(Block):
    """Counted once a row, where its sum over the keys is complete: after the merge of a split sequence.  `run` takes sinks, float32 [query heads] (-inf: none).

    The log-sum-exp counts it; a row without keys has output 0 and the sink as its log-sum-exp.
    """

    KIND = "score"
    NAME = "sink"
    HOOKS = {"denominator": "sink_denominator", "log_sum": "sink_log_sum"}

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"LOG2_E": Constant(math.log2(math.e), "base-2 units in a natural unit")}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (Argument("sinks", "*f32", "natural logit of each query head's sink [query heads]", shape=("query_heads",)),)

    def example_arguments(self, case: Any, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Sinks that outweigh short sequences and count beside long ones, and a head without one."""
        sinks = 3 * torch.randn(case.q.shape[1], generator=generator) + 3
        if len(sinks) > 1:
            sinks[torch.randint(len(sinks), (1,), generator=generator)] = -math.inf
        return {"sinks": sinks}

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"sink": given.get("sinks")}


@jit
def sink_denominator(args, l, m, head):
    """The sum with the sink's weight, relative to the same maximum: infinite, which makes the row 0, where no key weighs 2**-127 of the sink."""
    return l + exp2(load(args.sinks + head) * LOG2_E - maximum(m, -1.0e30) + P_EXPONENT)


@jit
def sink_log_sum(args, value, head):
    """Base-2 logarithm of the sum with the sink; value is -inf for a row without keys."""
    sink = load(args.sinks + head) * LOG2_E
    top = maximum(maximum(value, sink), -1.0e30)
    return top + log2(exp2(value - top) + exp2(sink - top))
