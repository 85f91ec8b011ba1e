"""States in one stack: a tensor whose first dimension counts them, as many as a launch brings."""

from __future__ import annotations

from typing import ClassVar

from attrs import field, frozen

from tle_attn.dialect import as_int64, jit, static_range
from tle_attn.spec import Argument, Block, Constant, Function, Problem
from tle_attn.spec.problem import at_least, one_of
from tle_attn.spec.types import DType


@frozen(kw_only=True)
class StackSource(Block):
    """outs [states, tokens, heads, head_dim] and lses [states, tokens, heads], by strides.

    Attributes:
        dtype: element type of outs.
        unroll: states whose loads are in flight together.
    """

    KIND = "source"
    NAME = "stack"
    STATES: ClassVar[int | None] = None

    dtype: DType = field(default=DType.BF16, validator=one_of((DType.BF16, DType.F32), "element types of partial outputs"))
    unroll: int = field(default=4, validator=at_least(1, "states whose loads are in flight together", 16))

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"UNROLL": Constant(self.unroll, "states whose loads are in flight together")}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (
            Argument("states", "i32", "number of states"),
            Argument("outs", f"*{self.dtype.value}", "partial outputs [states, tokens, heads, head_dim]"),
            Argument("outs_state_stride", "i64", "elements from one state to the next", divisible=16),
            Argument("outs_token_stride", "i64", "elements from one token to the next", divisible=16),
            Argument("outs_head_stride", "i64", "elements from one head to the next", divisible=16),
            Argument("lses", "*f32", "their log-sum-exp [states, tokens, heads]"),
            Argument("lses_state_stride", "i64", "elements from one state to the next"),
            Argument("lses_token_stride", "i64", "elements from one token to the next"),
            Argument("lses_head_stride", "i64", "elements from one head to the next"),
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("read_states"),)


@jit
def read_states(args, m, l, acc, token, head, d, here):
    """Every state of these rows."""
    out = token * args.outs_token_stride + head * args.outs_head_stride
    lse = token * args.lses_token_stride + head * args.lses_head_stride
    for first in range(0, args.states, UNROLL):
        for u in static_range(UNROLL):
            state = as_int64(first + u)
            there = here & (state < args.states)
            m, l, acc = add_state(m, l, acc, args.outs, out + state * args.outs_state_stride, args.lses, lse + state * args.lses_state_stride, d, there)
    return m, l, acc
