"""FP8 scales: Q and K per token and head, V per head (quant type 0 of hpc-ops).

K scales live beside the pages, 32 fp32 to a row (page, row, kv head, 32): in hpc-ops they are the extra rows of the K cache itself.  The producer warp
reads a tile's scales into registers, stores them into a ring slot one tile later, when they have arrived, and says so on a barrier; the slots
live and die with the K tile's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from tle_attn.components.scales.per_tensor import check_fp8, q_scale_arguments
from tle_attn.dialect import as_int64, barrier_arrive, jit, load, smem_store, static_range, vec_index, where
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, Constant, Function, Port, Problem
from tle_attn.spec.types import DType

TILE = 64
ROW = 32


@frozen(kw_only=True)
class PerTokenHead(Block):
    """logit = (q . k) * q_scale[token, head] * k_scale[key, kv head] * scale; output * v_scale[kv head]."""

    KIND = "scale"
    NAME = "per_token_head"
    KEY_SCALES = True
    VALUE_SCALES = False
    ROW_FACTORS = True
    HOOKS = {"value_unit": "value_scale"}

    def check(self, problem: Problem) -> None:
        check_fp8(self, problem)
        if problem.head_dim != 128:
            raise SpecError(f"K scales per token and head are for head_dim 128, not {problem.head_dim}", key="problem.head_dim", value=problem.head_dim, allowed="128", reason="a row of scales has the bytes of a row of the K cache")

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "KEY_SCALES": Constant(True, "every key has a scale of its own"),
            "ROW_FACTORS": Constant(True, "query rows have factors of their own"),
            "SCALE_ROW": Constant(ROW, "K scales in a row"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (
            *q_scale_arguments(),
            Argument("k_scale", "*f32", "scales of K [pages, rows, kv heads, 32], token t of a page at row t / 32, column t % 32"),
            Argument("k_scale_page_stride", "i64", "elements from one page's scales to the next"),
            Argument("k_scale_row_stride", "i64", "elements from one row of scales to the next"),
            Argument("k_scale_head_stride", "i64", "elements from one kv head's scales to the next"),
            Argument("v_scale", "*f32", "scale of V [kv heads]"),
        )

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, float]:
        return {}  # scales come with the tensors of a problem

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        s = Port("s", DType.F32, ("key", "query"), (TILE, problem.columns), layout="mma")
        return (Function("query_factor", (s,), (Port("factor", DType.F32, ("query",), (problem.columns,)),)), Function("fetch_key_scales"), Function("publish_key_scales"), Function("row_factor"), Function("value_factor"), Function("read_key_scales"))


@jit
def value_factor(args, head):
    """What rows of the output are multiplied by to be in units of V."""
    return load(args.v_scale + head)


@jit
def row_factor(args, seq, row, q_len, q_head):
    """Prefill: what the dot products of each query row are multiplied by, beside the key's scale; rows past the sequence's end have no scale to read."""
    q_scale = load(args.q_scale + seq * args.q_scale_batch_stride + q_head * args.q_scale_head_stride + row, mask=row < q_len, other=0.0)
    return q_scale * args.scale_log2


@jit
def token_scales(page_row, tile, kv_len, head, scales, page_stride, row_stride, head_stride):
    """Prefill: scales of a tile's tokens in the producer's registers, 0 past the sequence's end; page_row: pointer to the sequence's page ids."""
    key = tile * TILE + vec_index(TILE)
    there = key < kv_len
    page = load(page_row + key // PAGE, mask=there, other=0)
    offset = as_int64(page) * page_stride + as_int64(key % PAGE // SCALE_ROW) * row_stride + head * head_stride
    return load(scales + offset + key % PAGE % SCALE_ROW, mask=there, other=0.0)


@jit
def read_key_scales(args, page_row, tile, kv_len, head):
    """Prefill: scales of a key tile."""
    return token_scales(page_row, tile, kv_len, head, args.k_scale, args.k_scale_page_stride, args.k_scale_row_stride, args.k_scale_head_stride)


@jit
def query_factor(args, s, column, seq, head):
    """What the dot products of each query column are multiplied by, beside the key's scale; padding columns have no scale to read."""
    token = as_int64(seq * QUERY_TOKENS + column // GROUP)
    q_scale = load(args.q_scale + token * args.q_scale_stride + head * GROUP + column % GROUP, mask=column < ROWS, other=0.0)
    return q_scale * args.scale_log2


@jit
def scale_places(ids, lane, tile, head, scales, page_stride, row_stride, head_stride):
    """Pointers to the scales of a tile's tokens, and their pages, -1 past the end; ids, lane: where the tile's first page id is."""
    key = vec_index(TILE)
    page = key * 0 - 1
    for j in static_range(TILE_PAGES):
        page = where(key // PAGE == j, page_at(ids, lane + j), page)
    token = (tile % PAGE_TILES) * TILE + key % PAGE
    offset = as_int64(page) * page_stride + as_int64(token // SCALE_ROW) * row_stride + head * head_stride
    return scales + offset + token % SCALE_ROW, page


@jit
def fetch_key_scales(args, ids, lane, tile, head):
    """Scales of a key tile in the producer warp's registers, 0 for pages past the end; ids, lane: where its first page id is."""
    at, page = scale_places(ids, lane, tile, head, args.k_scale, args.k_scale_page_stride, args.k_scale_row_stride, args.k_scale_head_stride)
    return load(at, mask=page >= 0, other=0.0)


@jit
def publish_key_scales(k_scales, full, i, scales):
    """Tile i's scales into its ring slot."""
    smem_store(k_scales.slot(slot_of(i)), scales)
    barrier_arrive(full[slot_of(i)])


@jit
def value_scale(args, unit, head):
    """Decode: the factor of the output's rows with that of V in it."""
    return unit * value_factor(args, head)
