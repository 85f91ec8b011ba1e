"""FP8 V, transposed in shared memory by the producer warps: V^T [dim, keys] key-contiguous, as wgmma needs fp8.

The producer reads 16-bit pairs of head elements by ldmatrix.trans, splits the pairs by byte permutes and stores the rows by stmatrix.  Rows come out as
d' = (d & 1) * dim / 2 + (d >> 1); the epilogue puts them in order in registers.  Keys come out in the order t' of each 16 in which the accumulator fragment of S
is the operand fragment of P, so P needs no exchange between lanes.
"""

from __future__ import annotations

import torch
from attrs import frozen

from tle_attn.dialect import barrier_arrive, fence_async, jit, wgmma
from tle_attn.errors import SpecError
from tle_attn.spec import Block, Constant, Function, Port, Problem
from tle_attn.spec.types import DType, Place

M = 64
TILE = 128


@frozen(kw_only=True)
class Fp8Transpose(Block):
    """For fp8.  One copy of V^T for all consumers, written by the four producer warps: against a copy of each consumer, one written by consumer 0 for
    both, and a warpgroup of its own, this was the fastest by 9 to 25 % on an H200 (docs/performance.md)."""

    KIND = "v_operand"
    NAME = "fp8_transpose"
    TRANSPOSED = True
    RAW = {"tle_attn_transpose_v_fp8": "raw_transposed"}

    def check(self, problem: Problem) -> None:
        if problem.dtype is not DType.FP8:
            raise SpecError("bf16 V needs no transpose", key="block", value=self.NAME, allowed="direct_rows", reason="wgmma reads bf16 operands of either major axis")
        if problem.head_dim not in (64, 128):
            raise SpecError(
                f"fp8 V of head_dim {problem.head_dim} has no transpose", key="problem.head_dim", value=problem.head_dim, allowed=(64, 128),
                reason="a tile row is one 128-byte swizzle block at most",
            )

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"TRANSPOSED": Constant(True, "V tiles are transposed in shared memory")}

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        p = Port("p", DType.F32, ("query", "key"), (M, TILE), layout="mma")
        v = Port("v_tile", problem.dtype, ("dim", "key"), (problem.head_dim, TILE), Place.SHARED, "swizzled", "key")
        o = Port("o", DType.F32, ("query", "dim"), (M, problem.head_dim), layout="mma")
        return (Function("p_operand", (p,)), Function("pv_rows", (v, o), (o,)), Function("output_rows", (o,)), Function("transpose_tile"))

    @staticmethod
    def reference(p: torch.Tensor, v_tile: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        """Semantic definition of transpose_tile, p_operand, pv_rows and output_rows together, float64; v_tile: [keys, dim] as loaded."""
        return o.double() + p.to(torch.float8_e4m3fn).double() @ v_tile.double()


@jit
def pv_rows(p, v_tile, o):
    """Asynchronous o + P V; columns of o are d'."""
    return wgmma(p, v_tile, o, trans_b=True)


@jit
def transpose_tile(i, valid, v_ring, vt_ring, v_full, v_empty, vt_full, vt_empty):
    """Producer: V^T of tile i, keys from `valid` on zero: unused slots of a last page may hold NaN, and 0 * NaN is NaN."""
    wait_slot(v_full, i)
    v = transposed(v_ring.slot(slot_of(i)), valid)
    acquire(vt_empty, i)
    smem_store(vt_ring.slot(slot_of(i)), v)
    # also ends the reads of V: an arrival alone does not wait for them
    fence_async()
    release(v_empty, i)
    barrier_arrive(vt_full[slot_of(i)])
