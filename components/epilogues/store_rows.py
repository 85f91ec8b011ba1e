"""Masked-store epilogue of prefill: rows of one head in bf16 or fp32, and the log-sum-exp if it is asked for.

Rows past a sequence's end are not written.  A row without any visible key gives 0 (or NaN, as the CUDA reference does) and LSE -inf.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import field, frozen

from tle_attn.components.epilogues.store import lse_field
from tle_attn.dialect import as_int64, cols, fdiv, jit, like_rows, log2, rows, store, where, wide_rows
from tle_attn.spec import Argument, Block, Constant, Function, Port, Problem
from tle_attn.spec.problem import one_of
from tle_attn.spec.types import DType

M = 64


@frozen(kw_only=True)
class StoreRows(Block):
    """Writes out [query rows, query heads, head_dim] and, with `lse`, the log-sum-exp [query rows, query heads] in fp32.

    Attributes:
        dtype: element type of the output.
        lse: base of the log-sum-exp, "e" or "2", or "none".
        empty_row: "zero", or "nan" for the CUDA reference's contract.
    """

    KIND = "epilogue"
    NAME = "store_rows"
    #: 16 elements divide the strides of `out`
    ALIGNED: ClassVar[bool] = True
    #: rows leave through a tile of shared memory
    STAGED: ClassVar[bool] = False

    dtype: DType = field(default=DType.BF16, validator=one_of((DType.BF16, DType.F32), "output element types"))
    lse: str = lse_field()
    empty_row: str = field(default="zero", validator=one_of(("zero", "nan"), "what a row without any visible key gives"))

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "OUT_DTYPE": Constant(self.dtype, "element type of the output"),
            "LSE": Constant(self.lse != "none", "write the log-sum-exp"),
            "LSE_UNIT": Constant(math.log(2.0) if self.lse == "e" else 1.0, "base-2 logarithm to the LSE's base"),
            "ELEMENTS": Constant(problem.v_dim, "elements of a head of the output"),
            "PADDED": Constant(problem.value_tile_dim != problem.v_dim, "tiles are wider than a head"),
            "EMPTY_NAN": Constant(self.empty_row == "nan", "a row without any visible key is NaN, not 0"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        out = (
            Argument("out", f"*{self.dtype.value}", "output [query rows, query heads, head_dim]"),
            Argument("out_token_stride", "i64", "elements from one output row to the next", divisible=16),
            Argument("out_head_stride", "i64", "elements from one output head to the next", divisible=16),
            Argument("kv_heads", "i32", "key/value heads"),
        )
        return out + ((Argument("lse", "*f32", f"log-sum-exp, base {self.lse}, [query rows, query heads]"),) if self.lse != "none" else ())

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, str]:
        return {"empty_row": self.empty_row}

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        o = Port("o", DType.F32, ("query", "dim"), (M, problem.value_tile_dim))
        return (Function("store_rows", (o,)), Function("store_row_lse"), Function("inverse_of_rows"))


@jit
def inverse_of_rows(l):
    """1 / l, and what an empty row has in its place."""
    if EMPTY_NAN:
        inverse = fdiv(1.0, l)
    else:
        inverse = where(l > 0.0, fdiv(1.0, l), 0.0)
    return inverse


@jit
def store_rows(args, o, factor, q_start, row0, q_len, q_head):
    """Write 64 rows times their factors, the first of which is row `row0` of its sequence; factor: in the order of the accumulator's rows."""
    o = wide_rows((o * like_rows(factor, o)[:, None]).to(OUT_DTYPE))
    row = row0 + rows(o)
    at = as_int64(q_start + row) * args.out_token_stride + q_head * args.out_head_stride
    store(args.out + at[:, None] + cols(o)[None, :], o, mask=(row < q_len)[:, None] & (cols(o) < ELEMENTS if PADDED else cols(o) >= 0)[None, :])


@jit
def store_row_lse(args, m, l, factor, q_start, row0, q_len, q_head):
    """Log-sum-exp of 64 rows from the maxima m, in units of the scores, and the sums l, which carry 2**P_EXPONENT as P does."""
    if LSE:
        row = row0 + rows(m[:, None])
        # a sum that is NaN gives NaN: as -inf, a merge would take the row for one that has seen no key
        value = log_sum(args, where(l == 0.0, float("-inf"), m * factor + log2(l) - P_EXPONENT), q_head)
        store(args.lse + as_int64(q_start + row) * (args.kv_heads * GROUP) + q_head, value * LSE_UNIT, mask=row < q_len)
