"""V as it lies: O = P V with P [64 queries, keys] as register operand and the V tile [keys, dim] in shared memory."""

from __future__ import annotations

import torch
from attrs import frozen

from tle_attn.dialect import (
    fence_async,
    jit,
    like_rows,
    mma_zeros,
    named_wait,
    register_operand,
    rows,
    smem_load,
    smem_store,
    static_range,
    wgmma,
    wgmma_wait,
    where,
)
from tle_attn.errors import SpecError
from tle_attn.spec import Block, Constant, Function, Port, Problem
from tle_attn.spec.types import DType

M = 64


@frozen(kw_only=True)
class DirectRows(Block):
    """For bf16: wgmma reads a V tile of either major axis, and the accumulator fragment of S is the operand fragment of P."""

    KIND = "v_operand"
    NAME = "direct_rows"
    TRANSPOSED = False

    def check(self, problem: Problem) -> None:
        if problem.dtype is DType.FP8:
            raise SpecError("wgmma reads fp8 operands key-contiguous only", key="block", value=self.NAME, allowed="fp8_transpose in prefill, fp8_register in decode", reason="V lies head-element-contiguous")

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"TRANSPOSED": Constant(False, "V tiles are transposed in shared memory"), "FP32_SUMS": Constant(False, "products of key tiles are added in fp32")}

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        p = Port("p", DType.F32, ("query", "key"), (M, problem.prefill_keys), layout="mma")
        return (Function("p_operand", (p,)), *(Function(name) for name in ("no_output", "begin_pv", "go_on_with_pv", "end_pv", "rescaled", "output_rows")), Function("clear_rows"))

    @staticmethod
    def reference(p: torch.Tensor, v_tile: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        """Semantic definition of p_operand and the product together, float64."""
        return o.double() + p.bfloat16().double() @ v_tile.double()


@jit
def p_operand(p, o):
    """P as the register operand of the product; o: the accumulator."""
    return register_operand(p.to(DTYPE), o)


@jit
def no_output():
    """State of the output before the first product: the accumulator."""
    return (mma_zeros(64, HEAD_DIM, DTYPE),)


@jit
def begin_pv(p, v_tiles, slot, o):
    """Start o + P V for the V tile in ring slot `slot`."""
    return wgmma(p, v_tiles.slot(slot), o[0])


@jit
def go_on_with_pv(p, v_tiles, slot, o, product, top):
    """Once the scores are there: nothing to do."""
    return o, product


@jit
def end_pv(o, product, top):
    """The state with the product in it."""
    return (wgmma_wait(0, product),)


@jit
def rescaled(o, alpha):
    """The state in units of a new maximum."""
    return (o[0] * like_rows(alpha, o[0])[:, None],)


@jit
def output_rows(o):
    """The output [64, head_dim]."""
    return o[0]


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
