"""Length mask: a query sees all keys of its sequence, wherever it stands; for attention over keys that all come before the queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen

from tle_attn.dialect import jit, where_le
from tle_attn.spec import Block, Problem


@frozen(kw_only=True)
class Length(Block):
    """Keys 0 .. kv_len - 1.  It hides nothing but what follows the last token in its tile.

    What it is for: a prefix that several requests share, a part of the keys on another GPU, encoders and cross attention.
    """

    KIND = "mask"
    NAME = "length"
    HOOKS = {"mask": "length_mask"}
    BOUNDS_KEYS = True

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, bool]:
        return {"causal": False}

    @staticmethod
    def reference(s: torch.Tensor, key: torch.Tensor, kv_len: torch.Tensor) -> torch.Tensor:
        """Semantic definition; key positions broadcast against s."""
        return torch.where(key < kv_len, s, float("-inf"))


@jit
def length_mask(args, s, key, kv_len):
    """Keys of the sequence."""
    return where_le(key, kv_len - 1, s, float("-inf"))
