"""Query-row core: S = Q K^T, 64 query rows of one head as the M of a warpgroup's wgmma, a key tile as its N columns."""

from __future__ import annotations

import torch
from attrs import field, frozen
from attrs.validators import instance_of, optional

from tle_attn.dialect import barrier_arrive, barrier_wait, copy, jit, smem_operand, wgmma
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, BoxDescriptor, Constant, Function, Port, Problem
from tle_attn.spec.types import DType, Place

M = 64
TILE = 128


@frozen(kw_only=True)
class QueryRows(Block):
    """Query tiles [64 rows, head_dim] by TMA; scores [64, 128 keys] in registers.  Rows past a sequence's end hold other queries: they are not stored.

    Attributes:
        registers: hold Q as the register operand of its wgmma: shared memory is then read for K alone.  Worth 13 % for fp8 on an H200, where shared
            memory is the limit; bf16 has no registers left for it.  By default as the element type wants it.
    """

    KIND = "qk"
    NAME = "query_rows"

    registers: bool | None = field(default=None, validator=optional(instance_of(bool)))

    def in_registers(self, problem: Problem) -> bool:
        return problem.dtype is DType.FP8 if self.registers is None else self.registers

    def check(self, problem: Problem) -> None:
        if problem.v_dim != problem.head_dim:
            raise SpecError(
                f"prefill takes K and V of one width, not {problem.head_dim} and {problem.v_dim}", key="problem.value_dim", value=problem.value_dim, allowed="left out",
                reason="192 elements of K are a tile of 256 columns, of which shared memory has room for one beside Q and V: a ring of one slot waits for every tile",
            )
        if problem.tile_dim > 128:
            raise SpecError(
                f"prefill has no heads of {problem.head_dim}", key="problem.head_dim", value=problem.head_dim, allowed="64, 96, 128",
                reason="an output of 64 x 256 and scores of 64 x 128 beside each other take more registers than a warpgroup has: wgmma would be serialised (ptxas C7512)",
            )

    def column_blocks(self, problem: Problem) -> int:
        """128-byte column blocks of a query row."""
        return max(1, problem.tile_dim * problem.dtype.nbytes // 128)

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "HEAD_DIM": Constant(problem.tile_dim, "elements of a head" if problem.tile_dim == problem.head_dim else "columns of a tile, from which on a head is zeros"),
            "GROUP": Constant(problem.group, "query heads per key/value head"),
            "QUERY_TOKENS": Constant(1, "query tokens that a row stands for"),
            "DTYPE": Constant(problem.dtype, "element type of Q, K and V"),
            "Q_REGISTERS": Constant(self.in_registers(problem), "Q is a register operand"),
            "Q_BYTES": Constant(M * problem.tile_dim * problem.dtype.nbytes, "bytes of a query tile"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (Argument("q_desc", BoxDescriptor(problem.dtype, (1, M, problem.tile_dim)), "queries as (head, token, dim)"),)

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        q = Port("q_smem", problem.dtype, ("query", "dim"), (M, problem.tile_dim), Place.SHARED, "swizzled", "dim")
        k = Port("k_tile", problem.dtype, ("key", "dim"), (TILE, problem.tile_dim), Place.SHARED, "swizzled", "dim")
        s = Port("s", DType.F32, ("query", "key"), (M, TILE), Place.REGISTER, "mma")
        return (Function("load_query_tile", (), (q,)), Function("take_queries", (q,)), Function("qk_rows", (k,), (s,)))

    @staticmethod
    def reference(q_tile: torch.Tensor, k_tile: torch.Tensor) -> torch.Tensor:
        """Semantic definition of `qk_rows`, float64."""
        return q_tile.double() @ k_tile.double().T


@jit
def load_query_tile(args, q_smem, full, empty, w, item, head, token):
    """Producer: start the copy of consumer w's 64 rows of the CTA's `item`-th piece of work."""
    barrier_wait(empty[w], item)
    copy(args.q_desc, q_smem.slot(w), [1, 64, HEAD_DIM], [head, token, 0], barrier=full[w])


@jit
def take_queries(q_smem, full, empty, w: constexpr, item, s):
    """Consumer: Q as qk_rows wants it.  s: laid out as the scores."""
    barrier_wait(full[w], item)
    q = q_smem.slot(w)
    if Q_REGISTERS:
        q = smem_operand(q, s)
    return q


@jit
def give_queries_back(empty, w: constexpr, first: constexpr):
    """Consumer: the first (or the last) product with Q is done.  The first one has waited for Q's way into registers: an arrival alone does not, and the
    next unit's queries would overwrite what is still being read."""
    if first == Q_REGISTERS:
        barrier_arrive(empty[w])


@jit
def qk_rows(q, k_tile):
    """Asynchronous scores [64 query rows, TILE keys]."""
    return wgmma(q, k_tile, trans_b=True)
