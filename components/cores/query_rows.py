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


@frozen(kw_only=True)
class QueryRows(Block):
    """Query tiles [64 rows, head_dim] by TMA; scores [64, 128 keys] in registers.  Rows past a sequence's end hold other queries: they are not stored.

    Attributes:
        registers: hold Q as the register operand of its wgmma: shared memory is then read for K alone.  Worth 13 % for fp8 on an H200, where shared
            memory is the limit; bf16 has no registers left for it, and fp8 none beside an output of 256 columns.  By default as the element type and the head want it.
    """

    KIND = "qk"
    NAME = "query_rows"

    registers: bool | None = field(default=None, validator=optional(instance_of(bool)))

    def in_registers(self, problem: Problem) -> bool:
        return problem.dtype is DType.FP8 and problem.value_tile_dim <= 128 if self.registers is None else self.registers

    def check(self, problem: Problem) -> None:
        first, rest = problem.head_tiles
        if problem.value_tile_dim != first:
            raise SpecError(
                f"prefill has no heads of {problem.head_dim} elements with {problem.v_dim} values", key="problem.value_dim", value=problem.v_dim,
                allowed="96, 128" if first == 128 else "as head_dim", reason=f"a V tile is as wide as the first tile of K, {first} columns: their copies come in equal boxes",
            )

    def constants(self, problem: Problem) -> dict[str, Constant]:
        first, rest = problem.head_tiles
        told = "columns of a tile of V, and of the first one of Q and K" if rest else "elements of a head" if first == problem.head_dim else "columns of a tile, from which on a head is zeros"
        return {
            "HEAD_DIM": Constant(first, told),
            "REST": Constant(rest > 0, "a head of Q and K is two tiles"),
            "REST_DIM": Constant(rest, "columns of the second tile of Q and K"),
            "Q_REST_BYTES": Constant(M * rest * problem.dtype.nbytes, "bytes of a second query tile"),
            "GROUP": Constant(problem.group, "query heads per key/value head"),
            "COLUMNS": Constant(M, "query rows of a tile"),
            "QUERY_TOKENS": Constant(1, "query tokens that a row stands for"),
            "DTYPE": Constant(problem.dtype, "element type of Q, K and V"),
            "Q_REGISTERS": Constant(self.in_registers(problem), "Q is a register operand"),
            "Q_BYTES": Constant(M * first * problem.dtype.nbytes, "bytes of a query tile"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        boxes = zip(("q_desc", "q_rest_desc"), problem.head_tiles)
        return tuple(Argument(name, BoxDescriptor(problem.dtype, (1, M, columns)), "queries as (head, token, dim)") for name, columns in boxes if columns)

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        first, rest = problem.head_tiles
        q = Port("q_smem", problem.dtype, ("query", "dim"), (M, first), Place.SHARED, "swizzled", "dim")
        k, k_rest = (Port("k_tile", problem.dtype, ("key", "dim"), (problem.prefill_keys, columns), Place.SHARED, "swizzled", "dim") for columns in (first, rest))
        s = Port("s", DType.F32, ("query", "key"), (M, problem.prefill_keys), Place.REGISTER, "mma")
        more = (Function("add_rest", (k_rest,), (s,)),) if rest else ()
        return (Function("load_query_tile", (), (q,)), Function("take_queries", (q,)), Function("qk_rows", (k,), (s,)), *more)

    @staticmethod
    def reference(q_tile: torch.Tensor, k_tile: torch.Tensor) -> torch.Tensor:
        """Semantic definition of `qk_rows`, and with it of `add_rest`, float64; the tiles are whole heads."""
        return q_tile.double() @ k_tile.double().T


@jit
def load_query_tile(args, q_smem, q_rest, full, rest_full, empty, w, item, head, token):
    """Producer: start the copy of consumer w's 64 rows of the CTA's `item`-th piece of work."""
    barrier_wait(empty[w], item)
    copy(args.q_desc, q_smem.slot(w), [1, 64, HEAD_DIM], [head, token, 0], barrier=full[w])
    if REST:
        copy(args.q_rest_desc, q_rest.slot(w), [1, 64, REST_DIM], [head, token, HEAD_DIM], barrier=rest_full[w])


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


@jit
def add_rest(q_rest, k_rest, full, i, s):
    """Asynchronous: the second tile's part of the scores of key tile i, added to the first one's s."""
    wait_slot(full, i)
    return wgmma(q_rest, k_rest.slot(slot_of(i)), s, trans_b=True)
