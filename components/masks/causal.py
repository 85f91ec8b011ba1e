"""Causal mask: a query at position p sees keys 0 .. p; with several query tokens per request each token has its own p (MTP)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen

from tle_attn.dialect import jit, where_le
from tle_attn.spec import Block, Problem


@frozen(kw_only=True)
class Causal(Block):
    """Bottom-right aligned: query token i of n sits at position kv_len - n + i.  It also hides what follows the last token in its tile."""

    KIND = "mask"
    NAME = "causal"
    HOOKS = {"mask": "causal_mask"}
    #: it also bounds the keys by the sequence's length, for all that a mainloop reads in whole tiles
    BOUNDS_KEYS = True
    #: prefill: tiles behind a query's own position are not visited; and only the distance of query and key counts
    CAUSAL = True
    RELATIVE = True

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, bool]:
        return {"causal": True}

    @staticmethod
    def reference(s: torch.Tensor, key: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Semantic definition; key and query positions broadcast against s."""
        return torch.where(key <= query, s, float("-inf"))


@jit
def causal_mask(args, s, key, query, head):
    """Keys up to the query's own position."""
    return where_le(key, query, s, float("-inf"))
