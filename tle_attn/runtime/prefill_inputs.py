"""Checks of what a prefill plan's `run` is given: ragged queries, contiguous K and V, padded query scales, block masks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..spec import DType, Problem
from ..spec.tasks import MASK_KEYS, QUERY_TILE
from .inputs import check_kv_scales, check_lens, check_pages, check_presence, check_tma, want

if TYPE_CHECKING:
    import torch


def check_queries(q: Any, problem: Problem, max_query_rows: int, query_heads: int, device: Any) -> None:
    """Q [rows, query heads, head_dim] with at most the rows that the plan is for; strides that TMA takes."""
    want(q, "q", problem.dtype, (None, query_heads, problem.head_dim), device, "rows, query_heads, head_dim")
    if q.shape[0] > max_query_rows:
        raise InputError(f"q: {q.shape[0]} rows, but the plan is for {max_query_rows} at most; make it with max_query_rows={q.shape[0]}")
    if q.shape[0]:
        check_tma(q, "q", ("row", "head"))


def check_contiguous(tensor: Any, name: str, problem: Problem, dim: int, kv_heads: int, device: Any) -> None:
    """K or V without pages [rows, kv heads, head_dim], the rows of a sequence one after the other."""
    want(tensor, name, problem.dtype, (None, kv_heads, dim), device, "rows, kv_heads, head_dim")
    if tensor.shape[0] == 0:
        raise InputError(f"{name}: no rows; TMA cannot describe an empty tensor")
    check_tma(tensor, name, ("row", "head"))


def check_lengths(cu_seqlens_q: Any, kv_lens: Any, batch: int, device: Any) -> None:
    """Where queries start, int32 [batch + 1], and lengths, int32 [batch]."""
    want(cu_seqlens_q, "cu_seqlens_q", DType.I32, (batch + 1,), device, "batch + 1")
    if batch and cu_seqlens_q.stride(0) != 1:
        raise InputError(f"cu_seqlens_q: stride {cu_seqlens_q.stride(0)} where 1 is wanted")
    check_lens(kv_lens, batch, device)


def check_scales(kernel: Any, batch: int, query_heads: int, kv_heads: int, pages: int, device: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Scales of fp8 tensors by kernel argument; Q's [batch, query heads, padded], the queries of a sequence from 0 on."""
    if not check_presence(kernel, given):
        return {}
    q_scale = want(given["q_scale"], "q_scale", DType.F32, (batch, query_heads, None), device, "batch, query_heads, queries of the longest sequence or more")
    if q_scale.shape[2] > 1 and q_scale.stride(2) != 1:
        raise InputError(f"q_scale: stride {q_scale.stride(2)} in the last dimension where 1 is wanted")
    strides = {"q_scale_batch_stride": q_scale.stride(0), "q_scale_head_stride": q_scale.stride(1)}
    return {"q_scale": q_scale, **strides, **check_kv_scales(kernel, kv_heads, pages, device, given["k_scale"], given["v_scale"])}


def check_block_mask(block_mask: Any, batch: int, query_heads: int, device: Any) -> dict[str, Any]:
    """A block mask by kernel argument: bytes [batch, query heads, query tiles, key tiles], not 0 where a tile of 128 x 128 is kept."""
    axes = "batch, query_heads, query tiles of 128, key tiles of 128"
    want(block_mask, "block_mask", DType.U8, (batch, query_heads, None, None), device, axes)
    if block_mask.shape[3] == 0:
        raise InputError(f"block_mask: shape {tuple(block_mask.shape)} has no key tiles; [{axes}] with at least one is wanted")
    if block_mask.shape[3] > 1 and block_mask.stride(3) != 1:
        raise InputError(f"block_mask: stride {block_mask.stride(3)} in the last dimension where 1 is wanted")
    batch_stride, head_stride, row_stride, _ = block_mask.stride()
    return {
        "block_mask": block_mask, "block_mask_batch_stride": batch_stride, "block_mask_head_stride": head_stride, "block_mask_row_stride": row_stride,
        "block_mask_columns": block_mask.shape[3],
    }  # fmt: skip


def check_values(
    kernel: Any, q: torch.Tensor, k_cache: torch.Tensor, block_ids: torch.Tensor | None, cu_seqlens_q: torch.Tensor, kv_lens: torch.Tensor,
    q_scale: torch.Tensor | None, block_mask: torch.Tensor | None, strict_block_mask: bool,
) -> None:
    """Debug mode: read lengths and page ids on the host and refuse what the kernel would read out of range.

    `strict_block_mask`: also a mask with fewer key tiles than a sequence has; otherwise the first tile behind it counts as kept, later ones as dropped.
    """
    starts, lens = cu_seqlens_q.tolist(), kv_lens.tolist()
    if starts[0] != 0 or any(a > b for a, b in itertools.pairwise(starts)):
        raise InputError(f"cu_seqlens_q: {starts}; must start at 0 and never decrease")
    if starts[-1] > q.shape[0]:
        raise InputError(f"cu_seqlens_q[{len(lens)}]: {starts[-1]} query rows, but q has {q.shape[0]}")
    longest = max((b - a for a, b in itertools.pairwise(starts)), default=0)
    if q_scale is not None and q_scale.shape[2] < longest:
        raise InputError(f"q_scale: {q_scale.shape[2]} in the last dimension, but the longest sequence has {longest} queries")
    if block_ids is None:
        for b, length in enumerate(lens):
            if length < 0 or starts[b] + length > k_cache.shape[0]:
                raise InputError(f"kv_lens[{b}]: {length} keys from row {starts[b]} on, but k_cache has {k_cache.shape[0]} rows")
    else:
        # a sequence without queries reads nothing
        read = [0 if starts[b] == starts[b + 1] and n >= 0 else n for b, n in enumerate(lens)]
        # the first query's own: pages that lie before every window may be gone
        ends = [n - (b - a) + 1 for n, (a, b) in zip(lens, itertools.pairwise(starts), strict=True)]
        check_pages(kernel, block_ids, read, ends, k_cache.shape[0])
    if block_mask is None:
        return
    if block_mask.shape[2] * QUERY_TILE < longest:
        raise InputError(f"block_mask: {block_mask.shape[2]} query tiles, but the longest sequence has {longest} queries, {-(-longest // QUERY_TILE)} tiles of {QUERY_TILE}")
    if strict_block_mask:
        for b, length in enumerate(lens):
            needed = -(-length // MASK_KEYS)
            if starts[b] < starts[b + 1] and needed > block_mask.shape[3]:
                raise InputError(f"block_mask: {block_mask.shape[3]} key tiles, but sequence {b} has {length} keys, {needed} tiles of {MASK_KEYS} (strict_block_mask)")
