"""FP8 V operand in registers: the token-major tile is transposed on its way from shared memory, because wgmma takes 8-bit operands K-contiguous only.

A 16-bit transposing load (ldmatrix.trans) moves pairs of neighbouring head elements; one byte permute a register pair takes them apart.  What
comes out is V^T with both axes in an order of its own, which costs nothing: head elements are put right where O is written (`head_dim_of`), tokens by
storing P in the same order.
    row d' = 16 (d >> 4) + 8 (d & 1) + ((d >> 1) & 7);  column t' of each group of 16 tokens = 2 (t & 7) + (t >> 3)
"""

from __future__ import annotations

import torch
from attrs import field, frozen

from tle_attn.dialect import fence_async, jit, register_operand, wgmma, zero_rows
from tle_attn.errors import SpecError
from tle_attn.spec import Block, Constant, Function, Port, Problem
from tle_attn.spec.problem import one_of
from tle_attn.spec.types import DType, Place

TILE = 64


@frozen(kw_only=True)
class Fp8RegisterV(Block):
    """O^T[head_dim', N] += V^T P^T with V^T[head_dim', 64 keys'] as register A and P[N, 64 keys'] as B from shared memory.

    Source of the cost: 4 LDSM.MT and 16 PRMT a warp and tile, against 64 LDS.U8 and 48 PRMT for a plain transposed view (measured from SASS).

    Attributes:
        sums: "fp32", or "tensor_cores", which add fp8 products to their accumulator with about 13 bits and cut off the rest: where V has a mean and a task has
            thousands of keys, small products vanish in a large sum (V = 1 and 8193 diffuse keys give 0.86).  fp32 costs one addition for each element of O and tile.
    """

    KIND = "v_operand"
    NAME = "fp8_register"
    RAW = {"tle_attn_take_v_fp8": "take_v"}

    sums: str = field(default="fp32", validator=one_of(("tensor_cores", "fp32"), "where the products of key tiles are added up"))

    def check(self, problem: Problem) -> None:
        if problem.dtype is not DType.FP8:
            raise SpecError(f"the fp8 V operand cannot take {problem.dtype.value} tiles", key="block", value=self.NAME, allowed="dtype fp8", reason="wider types need no transpose: use direct")
        if problem.value_tile_dim != 128:
            raise SpecError(f"the fp8 V operand cannot take heads of {problem.v_dim} values", key="block", value=self.NAME, allowed="96, 128", reason="its register layout is that of a 128-byte row")

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"FP32_SUMS": Constant(self.sums == "fp32", "products of key tiles are added in fp32")}

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        n, d = problem.columns, problem.value_tile_dim
        p = Port("p", DType.F32, ("key", "query"), (TILE, n), layout="mma")
        p_tile = Port("p_tile", problem.dtype, ("query", "key"), (n, TILE), Place.SHARED, "swizzled", "key")
        over = Port("over", DType.I32, (), ())
        v_tile = Port("v_tile", problem.dtype, ("key", "dim"), (TILE, d), Place.SHARED, "swizzled", "dim")
        v = Port("v", problem.dtype, ("dim", "key"), (d, TILE))
        o = Port("o", DType.F32, ("dim", "query"), (d, n), layout="mma")
        return (
            Function("publish_p", (p,), (over, p_tile)), Function("clear_v", (v_tile,), (v_tile,)), Function("take_v", (v_tile,), (v,)),
            Function("pv_product", (v_tile, p_tile, o), (o,)), Function("add_product", (o, o), (o,)), Function("head_dim_of"),
        )  # fmt: skip

    @staticmethod
    def reference(v_tile: torch.Tensor, p: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        """Semantic definition of take_v, publish_p and pv_product together, float64: rows of the result are d'."""
        product = v_tile.double().T @ p.double()
        d = torch.arange(v_tile.shape[1])
        return o.double() + torch.empty_like(product).index_copy(0, 16 * (d >> 4) + 8 * (d & 1) + ((d >> 1) & 7), product)


@jit
def clear_v(v_tile, valid):
    """Zero the tokens from `valid` on: unused slots of a last page may hold NaN, and 0 * NaN is NaN."""
    zero_rows(v_tile, valid)
    fence_async()


@jit
def pv_product(v, p_tile, o):
    """Asynchronous V^T P^T, added to o by the tensor cores or to be added in fp32; v: what take_v gave."""
    if FP32_SUMS:
        product = wgmma(register_operand(v, o), p_tile, trans_b=True)
    else:
        product = wgmma(register_operand(v, o), p_tile, o, trans_b=True)
    return product


@jit
def add_product(o, product):
    """The output after a tile."""
    if FP32_SUMS:
        product = o + product
    return product


@jit
def head_dim_of(row):
    """Head element of an accumulator row."""
    return row // 16 * 16 + row % 8 * 2 + row // 8 % 2
