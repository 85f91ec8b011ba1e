"""Online softmax in base 2 along the keys, one column per query row; normalisation is deferred to the end.

State: running maximum m [N] and row sums l [keys, N] kept per key row, so that the sum over keys is taken once, at the end.
A column whose keys are all masked so far has m = -inf; its reference is 0 so that no NaN appears (exp2(-inf) = 0).
"""

from __future__ import annotations

import torch
from attrs import frozen

from tle_attn.dialect import exp2, jit, maximum, reduce_max, where
from tle_attn.spec import Block, Constant, Function, Port, Problem
from tle_attn.spec.types import DType

TILE = 64


@frozen(kw_only=True)
class OnlineSoftmax(Block):
    """Exact running maximum: P <= 1, O is rescaled whenever the maximum moves."""

    KIND = "softmax"
    NAME = "online"

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        n = problem.columns
        s = Port("s", DType.F32, ("key", "query"), (TILE, n), layout="mma")
        m = Port("m", DType.F32, ("query",), (n,))
        row_sum = Port("l", DType.F32, ("key", "query"), (TILE, n), layout="mma")
        p = Port("p", DType.F32, ("key", "query"), (TILE, n), layout="mma")
        alpha = Port("alpha", DType.F32, ("query",), (n,))
        return (Function("online_softmax", (s, m, row_sum), (p, m, row_sum, alpha)),)

    @staticmethod
    def reference(s: torch.Tensor, m: torch.Tensor, l: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: E741
        """Semantic definition, float64."""
        s, m, l = s.double(), m.double(), l.double()  # noqa: E741
        m_new = torch.maximum(m, s.amax(0))
        m_ref = torch.where(m_new > float("-inf"), m_new, 0.0)
        p, alpha = torch.exp2(s - m_ref), torch.exp2(m - m_ref)
        return p, m_new, l * alpha + p, alpha


@jit
def online_softmax(s, m, l):
    """One key tile: probabilities relative to the new maximum, the new state, and the factor for what was summed before."""
    m_new = maximum(m, reduce_max(s, 0))
    m_ref = where(m_new > float("-inf"), m_new, 0.0)
    alpha = exp2(m - m_ref)
    p = exp2(s - m_ref[None, :])
    return p, m_new, l * alpha[None, :] + p, alpha
