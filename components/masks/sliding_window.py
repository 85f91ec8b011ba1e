"""Sliding window: a query sees the last `window` keys, its own included; older key tiles are not loaded at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import field, frozen

from tle_attn.dialect import jit, maximum, where_le
from tle_attn.spec import Block, Constant, Problem
from tle_attn.spec.problem import at_least


@frozen(kw_only=True)
class SlidingWindow(Block):
    """Keys with query - key < window.  Used with `causal`, which bounds the other side.

    Counting: window = 1 sees the query's own token alone.  (Others count the keys *before* the query: their left = window - 1.)
    """

    KIND = "mask"
    NAME = "sliding_window"
    HOOKS = {"mask": "window_mask", "first_key": "window_first_key"}
    #: prefill: only the distance of query and key counts, and a query sees every key from the first one on that it sees
    RELATIVE = True
    INTERVAL = True

    window: int = field(validator=at_least(1, "keys that a query sees, its own included", 2**30))

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"WINDOW": Constant(self.window, "keys that a query sees, its own included")}

    def first_key(self, problem: Problem, kv_len: int) -> int:
        return max(0, kv_len - (problem.query_tokens - 1) - self.window)

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, int]:
        return {"window": self.window}

    def reference(self, s: torch.Tensor, key: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Semantic definition; key and query positions broadcast against s."""
        return torch.where(query - key < self.window, s, float("-inf"))


@jit
def window_mask(args, s, key, query, head):
    """Keys inside the window."""
    return where_le(query - (WINDOW - 1), key, s, float("-inf"))


@jit
def window_first_key(args, first, kv_len):
    """First key that the request's first query token sees."""
    return maximum(first, kv_len - (QUERY_TOKENS - 1) - WINDOW)
