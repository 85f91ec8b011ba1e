"""Small-M core: S^T = K Q^T, keys as the M = 64 rows of a wgmma and up to 64 query rows as its N columns.

With a handful of query rows per key/value head, queries as M would waste 56 of 64 rows; keys as M waste nothing, and N may be as small as 8.
"""

from __future__ import annotations

import torch
from attrs import frozen

from tle_attn.dialect import as_int64, fence_async, jit, load, smem_store, tile_index, wgmma
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, Constant, Function, Port, Problem
from tle_attn.spec.types import DType, Place

TILE = 64
MAX_COLUMNS = 64


@frozen(kw_only=True)
class SmallM(Block):
    """Query tile [N, head_dim] in shared memory, rows past the last query zero; scores [64 keys, N] in registers."""

    KIND = "qk"
    NAME = "small_m"

    def check(self, problem: Problem) -> None:
        if problem.rows > MAX_COLUMNS:
            name = "query_tokens" if problem.group <= MAX_COLUMNS and problem.query_tokens > 1 else "group"
            raise SpecError(
                f"{problem.query_tokens} query tokens x {problem.group} heads are {problem.rows} query rows", key=f"problem.{name}", value=getattr(problem, name),
                allowed=f"query_tokens * group <= {MAX_COLUMNS}", reason="all query rows of a key/value head are the N columns of one small-M wgmma",
            )

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "HEAD_DIM": Constant(problem.tile_dim, "elements of a head" + (", padded" if problem.tile_dim != problem.head_dim else "")),
            "HEAD_ELEMENTS": Constant(problem.head_dim, "elements of a head of Q and K"),
            "PADDED": Constant(problem.tile_dim != problem.head_dim, "tiles of Q and K are wider than a head"),
            "VALUE_DIM": Constant(problem.value_tile_dim, "elements of a head of V" + (", padded" if problem.value_tile_dim != problem.v_dim else ""), same_as="HEAD_DIM"),
            "VALUE_ELEMENTS": Constant(problem.v_dim, "elements of a head of V", same_as="HEAD_ELEMENTS"),
            "VALUES_PADDED": Constant(problem.value_tile_dim != problem.v_dim, "tiles of V are wider than a head"),
            "GROUP": Constant(problem.group, "query heads per key/value head"),
            "QUERY_TOKENS": Constant(problem.query_tokens, "query tokens per request"),
            "ROWS": Constant(problem.rows, "query rows of a key/value head"),
            "COLUMNS": Constant(problem.columns, "query rows padded to the wgmma's N"),
            "DTYPE": Constant(problem.dtype, "element type of Q, K and V"),
            "Q_VECTOR": Constant(16 // problem.dtype.nbytes, "elements of a 16-byte load"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        kind = f"*{problem.dtype.value}"
        return (
            Argument("q", kind, "queries [batch * query tokens, query heads, head_dim]"),
            Argument("q_token_stride", "i64", "elements from one query token to the next", divisible=16),
            Argument("q_head_stride", "i64", "elements from one query head to the next", divisible=16),
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        q = Port("q_smem", problem.dtype, ("query", "dim"), (problem.columns, problem.tile_dim), Place.SHARED, "swizzled", "dim")
        k = Port("k_tile", problem.dtype, ("key", "dim"), (TILE, problem.tile_dim), Place.SHARED, "swizzled", "dim")
        s = Port("s", DType.F32, ("key", "query"), (TILE, problem.columns), Place.REGISTER, "mma")
        return (Function("load_queries", (), (q,)), Function("qk_product", (k, q), (s,)))

    @staticmethod
    def reference(k_tile: torch.Tensor, q_smem: torch.Tensor) -> torch.Tensor:
        """Semantic definition of `qk_product`, float64."""
        return k_tile.double() @ q_smem.double().T


@jit
def load_queries(args, q_smem, seq, head):
    """Query rows of (sequence, key/value head): row r is token r // GROUP, head r % GROUP of the group."""
    r, d = tile_index(COLUMNS, HEAD_DIM, Q_VECTOR)
    token = as_int64(seq * QUERY_TOKENS + r // GROUP)
    q_head = as_int64(head * GROUP + r % GROUP)
    offset = token * args.q_token_stride + q_head * args.q_head_stride
    tile = load(args.q + offset[:, None] + d[None, :], mask=(r < ROWS)[:, None] & (d < HEAD_ELEMENTS if PADDED else d >= 0)[None, :], other=0.0)
    smem_store(q_smem, tile)
    fence_async()


@jit
def qk_product(k_tile, q_smem):
    """Asynchronous scores [TILE keys, COLUMNS query rows]."""
    return wgmma(k_tile, q_smem, trans_b=True)
