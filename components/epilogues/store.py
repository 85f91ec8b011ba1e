"""Masked-store epilogue: output rows in bf16 or fp32, and the log-sum-exp if it is asked for.

A row without any visible key gives 0 and LSE -inf.
"""

from __future__ import annotations

import math
from typing import Any

from attrs import field, frozen

from tle_attn.dialect import as_int64, fdiv, jit, log2, store, where
from tle_attn.spec import Argument, Block, Constant, Function, Problem
from tle_attn.spec.problem import one_of
from tle_attn.spec.types import DType


def lse_field() -> Any:
    """An attrs field: the base of the log-sum-exp, or that none is written."""
    return field(default="none", validator=one_of(("none", "e", "2"), "a log-sum-exp is only useful with its base, and both bases are in use: name it"))


@frozen(kw_only=True)
class StoreEpilogue(Block):
    """Writes out [tokens, query heads, head_dim] and, with `lse`, the log-sum-exp [tokens, query heads] in fp32.

    `lse` names the base: "e" (natural, what torch and FlashAttention report) or "2"; a base must be chosen because both are in use.
    """

    KIND = "epilogue"
    NAME = "store"

    dtype: DType = field(default=DType.BF16, validator=one_of((DType.BF16, DType.F32), "output element types"))
    lse: str = lse_field()

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "OUT_DTYPE": Constant(self.dtype, "element type of the output"),
            "LSE": Constant(self.lse != "none", "write the log-sum-exp"),
            "LSE_UNIT": Constant(math.log(2.0) if self.lse == "e" else 1.0, "base-2 logarithm to the LSE's base"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        out = (
            Argument("out", f"*{self.dtype.value}", "output [batch * query tokens, query heads, head_dim]"),
            Argument("out_token_stride", "i64", "elements from one output token to the next"),
            Argument("out_head_stride", "i64", "elements from one output head to the next"),
        )
        return out + ((Argument("lse", "*f32", f"log-sum-exp, base {self.lse}, [batch * query tokens, query heads]"),) if self.lse != "none" else ())

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("write_rows"), Function("write_lse"), Function("inverse_of"))


@jit
def inverse_of(l):
    """1 / l, and 0 for an empty row."""
    return where(l > 0.0, fdiv(1.0, l), 0.0)


@jit
def write_rows(args, value, row, d, keep, seq, head):
    """Normalised rows; row (query row of the group), d (head element) and keep broadcast to `value`."""
    token = as_int64(seq * QUERY_TOKENS + row // GROUP)
    q_head = as_int64(head * GROUP + row % GROUP)
    store(args.out + (token * args.out_token_stride + q_head * args.out_head_stride) + d, value.to(OUT_DTYPE), mask=keep)


@jit
def write_lse(args, m, l, row, keep, seq, head):
    """Log-sum-exp of query rows from the base-2 maximum m and the sum l, which carries 2**P_EXPONENT as P does."""
    if LSE:
        token = as_int64(seq * QUERY_TOKENS + row // GROUP)
        q_head = head * GROUP + row % GROUP
        # a sum that is NaN gives NaN: as -inf, a merge would take the row for one that has seen no key
        value = where(l == 0.0, float("-inf"), m + log2(l) - P_EXPONENT)
        value = log_sum(args, value, q_head)
        store(args.lse + token * (args.kv_heads * GROUP) + q_head, value * LSE_UNIT, mask=keep)
