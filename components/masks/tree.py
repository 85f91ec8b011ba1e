"""Tree mask: of this step's tokens, the drafts of speculative decoding, a query sees those that a matrix names; of earlier ones all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen

from tle_attn.dialect import jit, load, where
from tle_attn.spec import Argument, Block, Problem


@frozen(kw_only=True)
class Tree(Block):
    """In place of the causal rule.  `run` takes tree_mask, bool or uint8 [batch, query tokens, query tokens]: query token i sees token j where [b, i, j] is not 0.

    Positions stay slot numbers: token j of n sits in slot kv_len - n + j.
    """

    KIND = "mask"
    NAME = "tree"
    HOOKS = {"mask": "tree_mask_rule"}
    #: it also bounds the keys by the sequence's length
    BOUNDS_KEYS = True
    #: why prefill has no such mask
    DECODE_ONLY = "drafts are a step of decode, whose few tokens are rows of one tile: problem.query_tokens up to 64; a matrix of every pair of a prompt's tokens would be read element by element"

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        doc = "which of this step's tokens each sees [batch, query tokens, query tokens]"
        return (Argument("tree_mask", "*u8", doc, shape=("batch", "query_tokens", "query_tokens")),)

    def example_arguments(self, case: Any, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """A random tree for each sequence: every token sees itself, and what its parent, one of the tokens before it, sees."""
        n = case.query_tokens
        seen = torch.eye(n, dtype=torch.bool).repeat(len(case.kv_lens), 1, 1)
        for tree in seen:
            for i in range(1, n):
                parent = int(torch.randint(-1, i, (1,), generator=generator))
                if parent >= 0:
                    tree[i] |= tree[parent]
        return {"tree_mask": seen}

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"causal": True, "tree_mask": given.get("tree_mask")}

    @staticmethod
    def reference(s: torch.Tensor, key: torch.Tensor, query: torch.Tensor, seq: torch.Tensor, first_new: torch.Tensor, tree_mask: torch.Tensor) -> torch.Tensor:
        """Semantic definition; key and query positions broadcast against s."""
        n = tree_mask.shape[1]
        i, j = (query - first_new).long(), (key - first_new).long()
        new = tree_mask[int(seq)].bool()[i.clamp(0, n - 1), j.clamp(0, n - 1)] & (j < n) & (query >= 0)
        return torch.where((j < 0) | new, s, float("-inf"))


@jit
def tree_mask_rule(args, s, key, query, seq, first_new):
    """Earlier keys, and those of this step's that the tree names; a query before the first key sees nothing."""
    token = key - first_new
    asked = (token >= 0) & (token < QUERY_TOKENS) & (query >= 0)
    seen = load(args.tree_mask + (seq * QUERY_TOKENS + query - first_new) * QUERY_TOKENS + token, mask=asked, other=0)
    return where((token < 0) | (seen != 0), s, float("-inf"))
