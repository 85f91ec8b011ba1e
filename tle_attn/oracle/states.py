"""Merging attention over parts of the keys into attention over all of them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def logarithm_unit(lse_base: str) -> float:
    """Natural units in one unit of a logarithm to `lse_base` ("e" or "2")."""
    units = {"e": 1.0, "2": math.log(2.0)}
    if lse_base not in units:
        raise ValueError(f'lse_base: {lse_base!r}; allowed: "e", "2" (a log-sum-exp without a stated base cannot be used)')
    return units[lse_base]


def merge_states(outs: Tensor | Sequence[Tensor], lses: Tensor | Sequence[Tensor], *, lse_base: str = "e") -> tuple[Tensor, Tensor]:
    """Merge S partial results: outs [S, ..., Dv], each normalised over its own keys, with lses [S, ...].

    Returns float64 out [..., Dv] and lse [...], in the same base.  A part with lse -inf saw no key: its out is not
    read (it may hold anything).  If every part is empty the result is 0 with lse -inf.
    """
    unit = logarithm_unit(lse_base)
    out = torch.stack([part.double() for part in outs])
    lse = torch.stack([part.double() for part in lses]) * unit
    if out.shape[:-1] != lse.shape:
        raise ValueError(f"lses: shape {list(lse.shape)}; must be that of outs without its last dimension, {list(out.shape[:-1])}")
    if torch.isnan(lse).any() or (lse == math.inf).any():
        raise ValueError("lses: has NaN or +inf; must be finite, or -inf for a part without keys")
    largest = lse.amax(dim=0)
    empty = largest == -math.inf
    weight = torch.exp(lse - largest.masked_fill(empty, 0.0))
    total = weight.sum(dim=0)
    contribution = torch.where(lse[..., None] == -math.inf, 0.0, weight[..., None] * out)
    merged = contribution.sum(dim=0) / total.masked_fill(empty, 1.0)[..., None]
    return merged, (largest + torch.log(total)) / unit
