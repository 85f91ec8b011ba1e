"""V as it lies: O = P V with P [64 queries, keys] as register operand and the V tile [keys, dim] in shared memory."""

from __future__ import annotations

import torch
from attrs import frozen

from tle_attn.dialect import fence_async, jit, named_wait, register_operand, rows, smem_load, smem_store, static_range, wgmma, where
from tle_attn.errors import SpecError
from tle_attn.spec import Block, Constant, Function, Port, Problem
from tle_attn.spec.types import DType, Place

M = 64
TILE = 128


@frozen(kw_only=True)
class DirectRows(Block):
    """For bf16: wgmma reads a V tile of either major axis, and the accumulator fragment of S is the operand fragment of P."""

    KIND = "v_operand"
    NAME = "direct_rows"
    TRANSPOSED = False

    def check(self, problem: Problem) -> None:
        if problem.dtype is DType.FP8:
            raise SpecError("wgmma reads fp8 operands key-contiguous only", key="block", value=self.NAME, allowed="fp8_transpose", reason="V lies head-element-contiguous")

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"TRANSPOSED": Constant(False, "V tiles are transposed in shared memory")}

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        p = Port("p", DType.F32, ("query", "key"), (M, TILE), layout="mma")
        v = Port("v_tile", problem.dtype, ("key", "dim"), (TILE, problem.head_dim), Place.SHARED, "swizzled", "dim")
        o = Port("o", DType.F32, ("query", "dim"), (M, problem.head_dim), layout="mma")
        return (Function("p_operand", (p,)), Function("pv_rows", (v, o), (o,)), Function("output_rows", (o,)), Function("clear_rows"))

    @staticmethod
    def reference(p: torch.Tensor, v_tile: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        """Semantic definition of p_operand and pv_rows together, float64."""
        return o.double() + p.bfloat16().double() @ v_tile.double()


@jit
def p_operand(p, o):
    """P as the register operand of pv_rows; o: the accumulator."""
    return register_operand(p.to(DTYPE), o)


@jit
def pv_rows(p, v_tile, o):
    """Asynchronous o + P V."""
    return wgmma(p, v_tile, o)


@jit
def output_rows(o):
    """The accumulator with head elements in order."""
    return o


@jit
def clear_rows(v_atoms, slot, valid, w: constexpr, both):
    """Zero the keys of a ring slot from `valid` on: unused slots of a last page may hold NaN, and 0 * NaN is NaN.  Consumer 0 does it, both wait.

    v_atoms: the ring seen as a ring of swizzle atoms [8 keys, 128 B], so that it takes few registers.
    """
    if w == 0:
        for group in range(valid // 8, TILE // 8):
            for c in static_range(COLUMN_BLOCKS):
                atom = v_atoms.slot((slot * COLUMN_BLOCKS + c) * (TILE // 8) + group)
                v = smem_load(atom).to(F32)
                smem_store(atom, where((group * 8 + rows(v) < valid)[:, None], v, 0.0).to(DTYPE))
        fence_async()
    named_wait(both[0])
