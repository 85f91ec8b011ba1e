"""Direct V operand: the token-major bf16 tile is read in place through the wgmma descriptor's transpose bit."""

from __future__ import annotations

import torch
from attrs import frozen

from tle_attn.dialect import fence_async, jit, wgmma, zero_rows
from tle_attn.errors import SpecError
from tle_attn.spec import Block, Function, Port, Problem
from tle_attn.spec.types import DType, Place

TILE = 64


@frozen(kw_only=True)
class DirectV(Block):
    """O^T[head_dim, N] += V^T P^T with V[64 keys, head_dim] as A and P[N, 64 keys] as B, both from shared memory."""

    KIND = "v_operand"
    NAME = "direct"

    def check(self, problem: Problem) -> None:
        if problem.dtype is not DType.BF16:
            raise SpecError(
                f"the direct V operand cannot take {problem.dtype.value} tiles", key="block", value=self.NAME, allowed="dtype bf16",
                reason="wgmma reads 8-bit operands K-contiguous only: an fp8 V tile must be transposed first",
            )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        n, d = problem.columns, problem.value_tile_dim
        p = Port("p", DType.F32, ("key", "query"), (TILE, n), layout="mma")
        p_tile = Port("p_tile", problem.dtype, ("query", "key"), (n, TILE), Place.SHARED, "swizzled", "key")
        over = Port("over", DType.I32, (), ())
        v = Port("v_tile", problem.dtype, ("key", "dim"), (TILE, d), Place.SHARED, "swizzled", "dim")
        o = Port("o", DType.F32, ("dim", "query"), (d, n), layout="mma")
        return (
            Function("publish_p", (p,), (over, p_tile)), Function("clear_v", (v,), (v,)), Function("take_v", (v,)), Function("pv_product", (v, p_tile, o), (o,)),
            Function("add_product", (o, o), (o,)), Function("head_dim_of"),
        )  # fmt: skip

    @staticmethod
    def reference(v_tile: torch.Tensor, p_tile: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        """Semantic definition of `pv_product`, float64."""
        return o.double() + v_tile.double().T @ p_tile.double().T


@jit
def clear_v(v_tile, valid):
    """Zero the tokens from `valid` on: unused slots of a last page may hold NaN, and 0 * NaN is NaN."""
    zero_rows(v_tile, valid)
    fence_async()


@jit
def take_v(v_tile):
    """The tile as pv_product wants it: where it is."""
    return v_tile


@jit
def pv_product(v_tile, p_tile, o):
    """Asynchronous o + V^T P^T."""
    return wgmma(v_tile, p_tile, o, trans_a=True, trans_b=True)


@jit
def add_product(o, product):
    """The output after a tile: the product was added to it by the tensor cores."""
    return product


@jit
def head_dim_of(row):
    """Head element of an accumulator row."""
    return row
