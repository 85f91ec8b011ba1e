"""States in a list: 2 to 4 tensors of their own, each with its own strides."""

from __future__ import annotations

from attrs import field, frozen

from tle_attn.dialect import jit
from tle_attn.spec import Argument, Block, Constant, Function, Problem
from tle_attn.spec.problem import at_least, one_of
from tle_attn.spec.types import DType


@frozen(kw_only=True)
class ListSource(Block):
    """out_0, out_1, ... [tokens, heads, head_dim] and lse_0, lse_1, ... [tokens, heads], by strides.

    Attributes:
        dtype: element type of the outputs.
        count: states.  Each brings six arguments; a longer list is a stack.
    """

    KIND = "source"
    NAME = "list"

    dtype: DType = field(default=DType.BF16, validator=one_of((DType.BF16, DType.F32), "element types of partial outputs"))
    count: int = field(default=2, validator=at_least(2, "states that are tensors of their own; more are a stack", 4))

    @property
    def STATES(self) -> int:
        return self.count

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"COUNT": Constant(self.count, "states")}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return tuple(
            argument
            for i in range(self.count)
            for argument in (
                Argument(f"out_{i}", f"*{self.dtype.value}", f"partial output of state {i} [tokens, heads, head_dim]"),
                Argument(f"out_{i}_token_stride", "i64", "elements from one token to the next", divisible=16),
                Argument(f"out_{i}_head_stride", "i64", "elements from one head to the next", divisible=16),
                Argument(f"lse_{i}", "*f32", "its log-sum-exp [tokens, heads]"),
                Argument(f"lse_{i}_token_stride", "i64", "elements from one token to the next"),
                Argument(f"lse_{i}_head_stride", "i64", "elements from one head to the next"),
            )
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("read_states"),)


@jit
def read_states(args, m, l, acc, token, head, d, here):
    """Every state of these rows."""
    out = token * args.out_0_token_stride + head * args.out_0_head_stride
    lse = token * args.lse_0_token_stride + head * args.lse_0_head_stride
    m, l, acc = add_state(m, l, acc, args.out_0, out, args.lse_0, lse, d, here)
    out = token * args.out_1_token_stride + head * args.out_1_head_stride
    lse = token * args.lse_1_token_stride + head * args.lse_1_head_stride
    m, l, acc = add_state(m, l, acc, args.out_1, out, args.lse_1, lse, d, here)
    if COUNT > 2:
        out = token * args.out_2_token_stride + head * args.out_2_head_stride
        lse = token * args.lse_2_token_stride + head * args.lse_2_head_stride
        m, l, acc = add_state(m, l, acc, args.out_2, out, args.lse_2, lse, d, here)
    if COUNT > 3:
        out = token * args.out_3_token_stride + head * args.out_3_head_stride
        lse = token * args.lse_3_token_stride + head * args.lse_3_head_stride
        m, l, acc = add_state(m, l, acc, args.out_3, out, args.lse_3, lse, d, here)
    return m, l, acc
