"""Random partial results (states) to be merged; what an empty state holds, and what lies between rows, is poison."""

import math
from typing import Any, Self

import torch
from attrs import evolve, frozen
from torch import Tensor

from tle_attn.oracle import merge_states


@frozen(eq=False, kw_only=True)
class StatesProblem:
    """States of the same rows: outs [states, tokens, heads, head_dim] with gaps between rows, lses [states, tokens, heads]."""

    outs: Tensor
    lses: Tensor
    base: str  #: of the logarithm
    listed: bool  #: a run takes lists, one tensor for each state

    #: a plan for it is told nothing
    geometry: dict[str, int] = {}

    @property
    def inputs(self) -> dict[str, Any]:
        """All tensors as keyword arguments of `MergePlan.run`."""
        return {"outs": list(self.outs), "lses": list(self.lses)} if self.listed else {"outs": self.outs, "lses": self.lses}

    def to(self, device: torch.device | str) -> Self:
        """The same problem on another device, strides kept."""
        stored = torch.full((self.outs.untyped_storage().nbytes() // self.outs.element_size(),), math.nan, dtype=self.outs.dtype, device=device)
        outs = stored.as_strided(self.outs.shape, self.outs.stride(), self.outs.storage_offset()).copy_(self.outs)
        return evolve(self, outs=outs, lses=self.lses.to(device))

    def new_output(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """An output [tokens, heads, head_dim] full of NaN."""
        return torch.full(self.outs.shape[1:], math.nan, dtype=dtype, device=self.outs.device)

    def reference(self, *, lse_base: str | None = None, **options: Any) -> tuple[Tensor, Tensor]:
        """(out, lse) in float64, lse in `lse_base` (default: the states')."""
        out, lse = merge_states(self.outs, self.lses, lse_base=self.base)
        unit = {"e": 1.0, "2": math.log(2.0)}
        return out, lse * (unit[self.base] / unit[lse_base or self.base])

    def name_row(self, row: int) -> str:
        """The token in words, for failures."""
        empty = (self.lses[:, row] == -math.inf).sum(0).tolist()
        return f"token {row}; empty states by head: {empty}"


def make_states_problem(
    states: int,
    tokens: int,
    heads: int,
    *,
    head_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    base: str = "e",
    listed: bool = False,
    empty: float = 0.25,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> StatesProblem:
    """Random states; log-sum-exps of the size that scores over some thousand keys have, a share `empty` of them -inf, and the last token empty in all."""
    generator = torch.Generator().manual_seed(seed)
    lses = 9.0 + 3.0 * torch.randn(states, tokens, heads, generator=generator)
    lses[torch.rand(lses.shape, generator=generator) < empty] = -math.inf
    lses[:, -1:] = -math.inf
    values = torch.randn(states, tokens, heads, head_dim, generator=generator)
    stored = torch.full((states, tokens, heads + 1, head_dim + 16), math.nan, dtype=dtype)
    outs = stored[:, :, :heads, :head_dim]
    outs.copy_(values.masked_fill((lses == -math.inf)[..., None], math.nan))
    return StatesProblem(outs=outs, lses=lses, base=base, listed=listed).to(device)
