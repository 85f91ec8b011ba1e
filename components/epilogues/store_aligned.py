"""Store epilogue whose rows are written in vectors along head_dim: the same, with a promise about where they begin."""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, frozen

from tle_attn.components.epilogues.store import StoreEpilogue, inverse_of, write_lse, write_rows  # noqa: F401  (the block's device text)
from tle_attn.spec import Argument, Problem


@frozen(kw_only=True)
class StoreAligned(StoreEpilogue):
    """Options of `store`.  Strides of out are multiples of 16 elements, and its address of 16 bytes; others are refused."""

    NAME = "store_aligned"
    ALIGNED: ClassVar[bool] = True

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return tuple(evolve(a, divisible=16) if a.name in ("out_token_stride", "out_head_stride") else a for a in super().arguments(problem))
