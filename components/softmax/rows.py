"""Online softmax in base 2 along the columns of a score tile, one query a row; exact maximum, normalised at the end.

The scale of a query row stays out of the scores: with x = s * factor, 2**(x - max x) is one FMA and one exp2 an element.  Row sums are kept per
thread, four to a row, and added up at the end, so that a step exchanges the maximum alone between lanes.
"""

from __future__ import annotations

import torch
from attrs import field, frozen
from attrs.validators import optional

from tle_attn.dialect import exp2, jit, like_rows, maximum, reduce_max, reduce_sum, where
from tle_attn.errors import NumericError
from tle_attn.spec import Block, Constant, Function, Port, Problem
from tle_attn.spec.problem import at_least
from tle_attn.spec.types import DType

M = 64
#: largest finite value of the element type that P is stored in; bf16 keeps P as precise at any scale, its limit bounds the fp32 sums
P_MAX = {DType.BF16: 2.0**20, DType.FP8: 448.0}


def step_functions(problem: Problem) -> tuple[Function, ...]:
    """What a prefill softmax gives its mainloop for 64 query rows and a key tile."""
    s, p = (Port(name, DType.F32, ("query", "key"), (M, problem.prefill_keys), layout="mma") for name in ("s", "p"))
    m, factor = (Port(name, DType.F32, ("query",), (M,)) for name in ("m", "factor"))
    return (Function("larger_maximum", (s, m), (m,)), Function("weights", (s, m, m, factor), (p,)), Function("add_weights"), Function("row_sums"))


@frozen(kw_only=True)
class RowSoftmax(Block):
    """Running state of 64 query rows: m (largest score so far, in units of s), l [64, 4] (row sums).

    Attributes:
        p_exponent: P, l and O carry 2**p_exponent, which cancels.  e4m3 holds up to 448 and nothing below 2**-10: with 2**8 weights down to 2**-18 of the
            maximum count.  l counts P unrounded, as the CUDA reference's does: the LSE needs it.
    """

    KIND = "softmax"
    NAME = "rows"
    NORMALISED = True

    p_exponent: int | None = field(default=None, validator=optional(at_least(0, "at the maximum P is 1 or more", 64)))

    def exponent(self, problem: Problem) -> int:
        if self.p_exponent is not None:
            return self.p_exponent
        return 8 if problem.dtype is DType.FP8 else 0

    def check(self, problem: Problem) -> None:
        exponent, top = self.exponent(problem), P_MAX[problem.dtype]
        if 2.0**exponent > top:
            raise NumericError(
                f"P scaled by 2**{exponent} leaves the range of {problem.dtype.value}", key="p_exponent", value=exponent, allowed=f"2**p_exponent <= {top:g}",
                reason="the maximum of a row has P = 2**p_exponent",
            )

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"P_EXPONENT": Constant(float(self.exponent(problem)), "P, l and O carry 2**P_EXPONENT")}

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return step_functions(problem)

    def reference(self, s: torch.Tensor, m: torch.Tensor, l: torch.Tensor, factor: torch.Tensor, problem: Problem) -> tuple[torch.Tensor, ...]:
        """Semantic definition of a step, float64: p, m, l (a row's sum) and what O is multiplied by."""
        s, m, l, factor = s.double(), m.double(), l.double(), factor.double()
        moved = torch.maximum(m, s.amax(1))
        ref = torch.where(moved == -torch.inf, 0.0, moved)
        p = torch.exp2((s - ref[:, None]) * factor[:, None] + self.exponent(problem))
        alpha = torch.exp2((m - ref) * factor)
        return p, moved, l * alpha + p.sum(1), alpha


@jit
def larger_maximum(s, m):
    """Maximum of each row, this tile included."""
    return maximum(m, reduce_max(s, 1))


@jit
def weights(s, m, m_new, factor, masked: constexpr):
    """P of a tile, and what earlier sums and products are multiplied by; where no key was ever seen, P and the factor are 0 and 1 at most."""
    top = m_new
    if masked:
        top = where(m_new > float("-inf"), m_new, 0.0)
    alpha = exp2((m - top) * factor)
    return exp2(s * factor[:, None] - (top * factor - P_EXPONENT)[:, None]), alpha


@jit
def add_weights(l, alpha, p):
    """Row sums per thread, this tile included."""
    return l * like_rows(alpha, l)[:, None] + thread_sums(p)


@jit
def thread_sums(p):
    """[rows, 4]: columns 8 j + 2 c and 8 j + 2 c + 1 of a row lie in one thread for all j."""
    return reduce_sum(reduce_sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)


@jit
def row_sums(l):
    """The sum of each row."""
    return reduce_sum(l, 1)
