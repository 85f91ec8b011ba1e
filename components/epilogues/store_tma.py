"""TMA-store epilogue of prefill: 64 rows leave through shared memory while the next unit begins, where they are all of one sequence.

A box would write past the end of a sequence into the rows of the next one: the last rows of a sequence, fewer than 64, are stored as `store_rows` does.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from tle_attn.components.epilogues.store_rows import M, StoreRows, inverse_of_rows, store_row_lse, store_rows  # noqa: F401  (the block's device text)
from tle_attn.dialect import fence_async, jit, like_rows, role_sync, smem_store, tma_store, tma_store_wait
from tle_attn.spec import Argument, BoxDescriptor, Function, Port, Problem
from tle_attn.spec.types import DType, Place


@frozen(kw_only=True)
class StoreTma(StoreRows):
    """Options of `store_rows`; each consumer has a tile of shared memory for its rows.  Right on an H200; whether it is faster there has not been measured."""

    NAME = "store_tma"
    STAGED: ClassVar[bool] = True

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        box = BoxDescriptor(self.dtype, (1, M, problem.value_tile_dim))
        return (Argument("out_desc", box, "output as (query head, query row, dim)"), *super().arguments(problem))

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        staged = Port("staged", self.dtype, ("query", "dim"), (M, problem.value_tile_dim), Place.SHARED, "swizzled", "dim")
        o = Port("o", DType.F32, ("query", "dim"), (M, problem.value_tile_dim))
        return (*super().provides(problem), Function("send_rows", (staged, o)), Function("wait_for_rows"))


@jit
def send_rows(args, staged, o, factor, row, q_head):
    """Write 64 rows times their factors, from query row `row` on."""
    o = (o * like_rows(factor, o)[:, None]).to(OUT_DTYPE)
    wait_for_rows()
    smem_store(staged, o)
    fence_async()
    role_sync()
    tma_store(args.out_desc, staged, [1, 64, HEAD_DIM], [q_head, row, 0])


@jit
def wait_for_rows():
    """The rows that were sent last have left their tile."""
    tma_store_wait()
    role_sync()
