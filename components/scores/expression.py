"""Score expression: what a recipe's text, or a small Python function, makes of a logit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen

from tle_attn.codegen.expression import BOOL, LOG2E, Typed
from tle_attn.errors import SpecError
from tle_attn.expressions import ExpressionBlock
from tle_attn.spec import Problem


@frozen(kw_only=True)
class ScoreExpression(ExpressionBlock):
    """s becomes `value`, in natural units: [[score]] block = "expression", value = "s - rate * (query - key)", numbers = {rate = 0.01}."""

    KIND = "score"
    NAME = "expression"
    CHAIN = "score"

    def end(self, result: Typed) -> str:
        if result.kind == BOOL or "s" not in result.inputs:
            reason = "it would give every key the same weight, whatever Q and K are"
            raise SpecError("the value is no score: it must be a number that depends on s", key="value", value=self.value, allowed="for example s - 0.1 * (query - key)", reason=reason)
        return f"{result.as_float} * {LOG2E!r}"

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"score_steps": (lambda s, key, query, head, sequence: self.evaluate(s=s, key=key, query=query, head=head),)}

    def reference(self, s: torch.Tensor, key: torch.Tensor, query: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """Semantic definition, float64; s and the result in base-2 units."""
        return self.evaluate(s=s.double() / LOG2E, key=key.long(), query=query.long(), head=head.long()) * LOG2E
