"""FP8 V, transposed in shared memory by the producer warps: V^T [dim, keys] key-contiguous, as wgmma needs fp8.

The producer reads 16-bit pairs of head elements by ldmatrix.trans, splits the pairs by byte permutes and stores the rows by stmatrix: even above odd head
elements, d' = (d & 1) * dim / 2 + (d >> 1); the epilogue puts them in order in registers.  Keys come out in the order t' of each 16 in which the accumulator
fragment of S is the operand fragment of P, so P needs no exchange between lanes.
"""

from __future__ import annotations

import torch
from attrs import field, frozen

from tle_attn.dialect import barrier_arrive, fence_async, full_rows, jit, like_rows, mma_zeros, smem_store, wgmma, wgmma_wait
from tle_attn.errors import SpecError
from tle_attn.spec import Block, Constant, Function, Port, Problem
from tle_attn.spec.problem import one_of
from tle_attn.spec.types import DType

M = 64


@frozen(kw_only=True)
class Fp8Transpose(Block):
    """For fp8.  One copy of V^T for all consumers, written by the four producer warps: against a copy of each consumer, one written by consumer 0 for
    both, and a warpgroup of its own, this was the fastest by 9 to 25 % on an H200 (docs/performance.md).

    Attributes:
        sums: "tensor_cores", or "fp32".  The tensor cores add fp8 products to their accumulator with about 13 bits and cut off the rest: where V has a mean and the context is
            long, small products vanish in a large sum (8192 equal values lost 13 % on an H200; values of zero mean lose nothing that shows beside the rounding of P).  "fp32": each
            tile's product starts from zero and is added in fp32, with the rescale in the same instruction, half of the head elements at a time because a second accumulator
            has no registers.  10 % more instructions a step, 6 to 10 % more time on an H200 (docs/performance.md).
    """

    KIND = "v_operand"
    NAME = "fp8_transpose"
    TRANSPOSED = True
    RAW = {"tle_attn_transpose_v_fp8": "raw_transposed"}

    sums: str = field(default="tensor_cores", validator=one_of(("tensor_cores", "fp32"), "where the products of key tiles are added up"))

    def check(self, problem: Problem) -> None:
        if problem.dtype is not DType.FP8:
            raise SpecError("bf16 V needs no transpose", key="block", value=self.NAME, allowed="direct_rows in prefill, direct in decode", reason="wgmma reads bf16 operands of either major axis")
        if self.sums == "fp32" and problem.value_tile_dim > 128:
            raise SpecError(
                f"sums in fp32 are for heads of 128 values at most, not {problem.v_dim}", key="sums", value=self.sums, allowed='"tensor_cores"',
                reason="a product of 64 x 128 beside sums of 64 x 256 takes more registers than a warpgroup has, and ptxas spills in every step",
            )

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "TRANSPOSED": Constant(True, "V tiles are transposed in shared memory"),
            "FP32_SUMS": Constant(self.sums == "fp32", "products of key tiles are added in fp32, even and odd head elements apart"),
        }

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        p = Port("p", DType.F32, ("query", "key"), (M, problem.prefill_keys), layout="mma")
        return (Function("p_operand", (p,)), *(Function(name) for name in ("no_output", "begin_pv", "go_on_with_pv", "end_pv", "rescaled", "output_rows", "transpose_tile")))

    @staticmethod
    def reference(p: torch.Tensor, v_tile: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        """Semantic definition of transpose_tile, p_operand, the products and output_rows together, float64; v_tile: [keys, dim] as loaded."""
        return o.double() + p.to(torch.float8_e4m3fn).double() @ v_tile.double()


@jit
def no_output():
    """State of the output before the first product: the accumulator, or sums of even and of odd head elements and what both are still to be multiplied by."""
    if FP32_SUMS:
        even = mma_zeros(64, HEAD_DIM // 2, DTYPE)
        return even, mma_zeros(64, HEAD_DIM // 2, DTYPE), full_rows(even, 1.0)
    else:
        return (mma_zeros(64, HEAD_DIM, DTYPE),)


@jit
def begin_pv(p, v_tiles, slot, o):
    """Start the product with the V tile in ring slot `slot`, or with its even head elements."""
    if FP32_SUMS:
        return wgmma(p, v_tiles.slot(2 * slot), trans_b=True)
    else:
        return wgmma(p, v_tiles.slot(slot), o[0], trans_b=True)


@jit
def go_on_with_pv(p, v_tiles, slot, o, product, top):
    """Once the scores are there: add the even half, start the odd one."""
    if FP32_SUMS:
        even = wgmma_wait(0, product)
        if VALUE_SCALES:
            # top: the tile's largest scale, in every row
            even = even * top[:, None]
        even = o[0] * o[2][:, None] + even
        o = (even, o[1], o[2])
        product = wgmma(p, v_tiles.slot(2 * slot + 1), trans_b=True)
    return o, product


@jit
def end_pv(o, product, top):
    """The state with the product in it."""
    if FP32_SUMS:
        odd = wgmma_wait(0, product)
        if VALUE_SCALES:
            odd = odd * top[:, None]
        return o[0], o[1] * o[2][:, None] + odd, o[2]
    else:
        return (wgmma_wait(0, product),)


@jit
def rescaled(o, alpha):
    """The state in units of a new maximum; fp32 sums are multiplied with the next addition."""
    if FP32_SUMS:
        return o[0], o[1], like_rows(alpha, o[0])
    else:
        return (o[0] * like_rows(alpha, o[0])[:, None],)


@jit
def output_rows(o):
    """The output [64, head_dim]."""
    if FP32_SUMS:
        return interleaved(o[0], o[1])
    else:
        return in_order(o[0])


@jit
def transpose_tile(i, valid, v_ring, vt_ring, v_full, v_empty, vt_full, vt_empty, scales, v_ratios, v_tops, ratios_full):
    """Producer: V^T of tile i, keys from `valid` on zero: unused slots of a last page may hold NaN, and 0 * NaN is NaN."""
    wait_slot(v_full, i)
    v = transposed(v_ring.slot(slot_of(i)), valid)
    acquire(vt_empty, i)
    if VALUE_SCALES:
        # of the same slot, and wanted first
        publish_value_scales(v_ratios, v_tops, ratios_full, i, scales)
    smem_store(vt_ring.slot(slot_of(i)), v)
    # also ends the reads of V: an arrival alone does not wait for them
    fence_async()
    release(v_empty, i)
    barrier_arrive(vt_full[slot_of(i)])
