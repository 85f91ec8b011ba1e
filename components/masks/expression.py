"""Mask expression: which keys a query sees, as a recipe's text or a small Python function says."""

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
class MaskExpression(ExpressionBlock):
    """A key counts where `value` is true: [[mask]] block = "expression", value = "key < sinks or query - key < window", numbers = {sinks = 4, window = 1024}.

    Used with `causal`, which ends the keys.  All tiles are loaded; a mask that lets tiles be skipped is a block of its own.
    """

    KIND = "mask"
    NAME = "expression"
    CHAIN = "mask"

    def end(self, result: Typed) -> str:
        if result.kind != BOOL:
            raise SpecError(f"the value is a {result.kind}, and no rule", key="value", value=self.value, allowed="a comparison, for example query - key < 128")
        if "s" in result.inputs:
            reason = "a mask is a rule of positions, and prefill masks before it has logits; a score can give -1e30"
            raise SpecError("a mask cannot look at s", key="value", value=self.value, allowed="key, query, head and numbers", reason=reason)
        return f'where({result.text}, s, float("-inf"))'

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"mask_steps": (lambda key, query, head, sequence: self.evaluate(key=key, query=query, head=head),)}

    def reference(self, s: torch.Tensor, key: torch.Tensor, query: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """Semantic definition; s in base-2 units."""
        return torch.where(self.evaluate(s=s.double() / LOG2E, key=key.long(), query=query.long(), head=head.long()), s, float("-inf"))
