"""Online softmax in base 2 along the keys, normalised at the end; the reference maximum moves only when a probability grows past a limit.

Softmax does not depend on the reference, only its range does: with m from the first tile, P = 2**(s - m) stays right until it leaves the range of
its element type.  So a usual step needs no maximum over the keys, no exchange between warps and no rescale; the one test, P > limit, rides on the
barrier that publishes P anyway.  An exact maximum is the same with the limit at a fresh maximum's P, so that every new maximum is followed.
"""

from __future__ import annotations

import torch
from attrs import field, frozen
from attrs.validators import optional

from tle_attn.dialect import exp2, jit, maximum, reduce_max, role_sync
from tle_attn.errors import NumericError
from tle_attn.spec import Block, Constant, Function, Port, Problem
from tle_attn.spec.problem import at_least, one_of
from tle_attn.spec.types import DType, Place

TILE = 64
#: largest finite value of the element type that P is stored in; bf16 keeps P as precise at any scale, its limit bounds the fp32 sums
P_MAX = {DType.BF16: 2.0**20, DType.FP8: 448.0}


def step_functions(problem: Problem) -> tuple[Function, ...]:
    """What a decode softmax gives its mainloop: the state before the first key tile, and one tile's step."""
    n, d = problem.columns, problem.value_tile_dim
    s, l = (Port(name, DType.F32, ("key", "query"), (TILE, n), layout="mma") for name in ("s", "l"))
    m = Port("m", DType.F32, ("query",), (n,))
    o = Port("o", DType.F32, ("dim", "query"), (d, n), layout="mma")
    p_tile = Port("p_tile", problem.dtype, ("query", "key"), (n, TILE), Place.SHARED, "swizzled", "key")
    ratio = Port("ratio", DType.F32, ("key",), (TILE,))
    return (Function("first_reference", (s,), (m,)), Function("softmax_step", (s, m, l, o, ratio), (m, l, o, p_tile)))


@frozen(kw_only=True)
class OnlineSoftmax(Block):
    """Running state: reference m [N] (base-2 logits), row sums l [keys, N] kept per key row.

    Attributes:
        maximum: "lazy", or "exact": follow every new maximum, P <= 2**p_exponent always; costs a rescale at each.
        p_exponent: P carries 2**p_exponent (fp8: spends e4m3's range above 1); O and l carry it too, so it cancels.

    Source of the numbers: bf16 P is as precise at 2**20 as at 1.  e4m3 holds up to 448 = 2**8.8 and nothing below 2**-10: P starts at
    2**7, so that weights down to 2**-17 of the maximum count (one dominant key among 8192 others would lose 3 % of the output with 2**6), and a lazy
    maximum keeps 1.8 binary orders of headroom; an exact one starts at 2**8.  The sum counts P unrounded, as the CUDA reference's does: the LSE needs it.
    """

    KIND = "softmax"
    NAME = "online"
    NORMALISED = True

    maximum: str = field(default="lazy", validator=one_of(("lazy", "exact"), "when the reference maximum moves"))
    p_exponent: int | None = field(default=None, validator=optional(at_least(0, "at the reference maximum P is 1 or more", 64)))

    @property
    def exact_maximum(self) -> bool:
        return self.maximum == "exact"

    def exponent(self, problem: Problem) -> int:
        if self.p_exponent is not None:
            return self.p_exponent
        return (8 if self.exact_maximum else 7) if problem.dtype is DType.FP8 else 0

    def limit(self, problem: Problem) -> float:
        """P above this moves the reference."""
        return 2.0 ** self.exponent(problem) if self.exact_maximum else P_MAX[problem.dtype]

    def check(self, problem: Problem) -> None:
        exponent, top = self.exponent(problem), P_MAX[problem.dtype]
        if 2.0**exponent > top or (not self.exact_maximum and 2.0 ** (exponent + 1) > top):
            raise NumericError(
                f"P scaled by 2**{exponent} leaves the range of {problem.dtype.value}", key="p_exponent", value=exponent,
                allowed=f"2**p_exponent <= {top:g}" + ("" if self.exact_maximum else ", with at least one binary order of headroom for a lazy maximum"),
                reason="a fresh maximum has P = 2**p_exponent, an older one more",
            )

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "P_EXPONENT": Constant(float(self.exponent(problem)), "P, l and O carry 2**P_EXPONENT"),
            "P_LIMIT": Constant(self.limit(problem), "P above this moves the reference maximum"),
        }

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return step_functions(problem)

    def reference(self, s: torch.Tensor, m: torch.Tensor, l: torch.Tensor, o: torch.Tensor, problem: Problem) -> tuple[torch.Tensor, ...]:
        """Semantic definition of `softmax_step`, float64: the state after a tile, and P^T as published."""
        s, m, l, o = s.double(), m.double(), l.double(), o.double()
        exponent = self.exponent(problem)
        p = torch.exp2(s - m + exponent)
        if (p > self.limit(problem)).any():
            moved = torch.maximum(m, s.amax(0))
            alpha = torch.exp2(m - moved)
            m, l, o, p = moved, l * alpha, o * alpha, torch.exp2(s - moved + exponent)
        return m, l + p, o, p.T


@jit
def first_reference(s):
    """Reference maximum from the first key tile; finite even where every key is masked, so that s - m is never NaN."""
    return maximum(reduce_max(s, 0), -1.0e30)


@jit
def softmax_step(args, s, m, l, o, p_tile, ratio):
    """One key tile: P in shared memory for the product; m, l and o follow the maximum where P left its range."""
    p = exp2(s - (m - P_EXPONENT)[None, :])
    if publish_p(p_tile, tile_weights(args, p, ratio, P_LIMIT), P_LIMIT) != 0:
        m_new = maximum(m, reduce_max(s, 0))
        alpha = exp2(m - m_new)
        o = o * alpha[None, :]
        l = l * alpha[None, :]
        m = m_new
        p = exp2(s - (m - P_EXPONENT)[None, :])
        publish_p(p_tile, tile_weights(args, p, ratio, P_LIMIT), P_LIMIT)
        # ends the exchange of the maximum here, or the compiler would put a barrier into every step behind this branch
        role_sync()
    return m, l + p, o
