"""Merge mainloop: partial results of attention over parts of the keys become the result over all of them, weighted by their log-sum-exp.

It moves every state once and the result once, and computes next to nothing: bound by memory, or for small batches by the latency of one load.
All of a row is in one CTA, which reads every state of its rows before it writes, so the output may be one of the inputs.
"""

from __future__ import annotations

import math

from attrs import field, frozen

from tle_attn.checks.resources import register_cap
from tle_attn.components.epilogues.store_aligned import StoreAligned
from tle_attn.components.reducers.split_merge import merge_states
from tle_attn.components.sources.stack import StackSource
from tle_attn.dialect import F32, as_int64, cols, full_rows, jit, load, program_id, role_sync, rows, tile_zeros, where
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, Constant, Function, Mainloop, Problem, Resources, Role, slot
from tle_attn.spec.problem import one_of

WARPS = 4


@frozen(kw_only=True)
class MergeMainloop(Mainloop):
    """Grid (tiles of rows,): one CTA merges as many (token, head) rows as its threads load with 16 bytes each.

    Attributes:
        base: of the logarithm in the states' log-sum-exp, "e" or "2"; that of the result is `epilogue.lse`.
    """

    KIND = "mainloop"
    NAME = "merge"
    PHASE = "merge"
    ENTRIES = ("merge",)
    CHAINS = {"log_sum": ("args", "value", "head")}

    base: str = field(validator=one_of(("e", "2"), "a log-sum-exp means nothing without its base, and both are in use"))

    source: Block = slot("source", factory=StackSource)
    epilogue: Block = slot("epilogue", factory=StoreAligned)

    def check(self, problem: Problem) -> None:
        plain = Problem(head_dim=problem.head_dim, group=1)
        for name in ("dtype", "group", "query_tokens", "page"):
            if getattr(problem, name) != getattr(plain, name):
                raise SpecError(
                    f"a merge has no {name}", key=f"problem.{name}", value=getattr(problem, name), allowed=f"{getattr(plain, name)}, or nothing",
                    reason="states are rows of (token, head); of [problem] only head_dim says something about them (source.dtype is their element type)",
                )

    def width(self, problem: Problem) -> int:
        """Columns of the register tile: head_dim as a power of two."""
        return 1 << (problem.head_dim - 1).bit_length()

    def tile_rows(self, problem: Problem) -> int:
        """Rows of a CTA."""
        return max(WARPS, WARPS * 32 * self._vector // self.width(problem))

    @property
    def _vector(self) -> int:
        return 16 // self.source.dtype.nbytes

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "HEAD_DIM": Constant(problem.head_dim, "elements of a head"),
            "WIDTH": Constant(self.width(problem), "head_dim as a power of two"),
            "TILE_ROWS": Constant(self.tile_rows(problem), "rows of a CTA"),
            "VECTOR": Constant(self._vector, "elements of a 16-byte load"),
            "LOG2_UNIT": Constant(math.log2(math.e) if self.base == "e" else 1.0, "base-2 units in a unit of the states' log-sum-exp"),
            "P_EXPONENT": Constant(0.0, "a sum of weights carries no factor"),
            "GROUP": Constant(1, "every head is its own"),
            "QUERY_TOKENS": Constant(1, "every token is its own"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (Argument("row_count", "i32", "tokens * heads"), Argument("kv_heads", "i32", "heads of a token"))

    def requires(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("read_states"), Function("write_rows"), Function("write_lse"), Function("inverse_of"))

    def resources(self, problem: Problem) -> Resources:
        # 1024 threads with four 16-byte loads each in flight are three times what hides the latency of memory; more would leave them few registers
        return Resources(roles=(Role("merge", "merge", WARPS, 0),), ctas_per_sm=8)

    def launch_note(self, problem: Problem, entry: str) -> str:
        return f"grid (rows / {self.tile_rows(problem)},), {WARPS} warps, at most {register_cap(self.resources(problem))} registers a thread"


@jit
def add_state(m, l, acc, outs, out_at, lses, lse_at, d, here):
    """One more state of every row.  An empty one (-inf) changes nothing, whatever its output holds; one that is NaN makes the row NaN."""
    m_i = load(lses + lse_at, mask=here, other=float("-inf")) * LOG2_UNIT
    o_i = load(outs + out_at[:, None] + d[None, :], mask=here[:, None] & (d < HEAD_DIM)[None, :], other=0.0).to(F32)
    o_i = where((m_i == float("-inf"))[:, None], 0.0, o_i)
    return merge_states(m, l, acc, (m_i,), (1.0,), (o_i,))


@jit
def merge(args):
    """TILE_ROWS rows of (token, head)."""
    acc = tile_zeros(TILE_ROWS, WIDTH, VECTOR)
    m = full_rows(acc, float("-inf"))
    l = full_rows(acc, 0.0)
    d = cols(acc)
    row = program_id(0) * TILE_ROWS + rows(acc)
    here = row < args.row_count
    token = row // args.kv_heads
    head = row % args.kv_heads
    m, l, acc = read_states(args, m, l, acc, as_int64(token), as_int64(head), d, here)
    # a log-sum-exp is read by every thread of its row and written by one: no store before the last load, where both are one tensor
    role_sync()
    keep = here[:, None] & (d < HEAD_DIM)[None, :]
    write_rows(args, acc * inverse_of(l)[:, None], 0, d[None, :], keep, token[:, None], head[:, None])
    write_lse(args, m, l, 0, here, token, head)
