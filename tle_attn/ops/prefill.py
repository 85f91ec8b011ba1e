"""Prefill as torch operators: schemas, launches, and what a compiler needs to know about results.

`tle_attn::attention_prefill_bf16`, `_fp8` and `_contiguous_bf16` return a new tensor, their `_out` forms write into one and return nothing.  The meaning
of tensors is that of `tle_attn.runtime.PrefillPlan.run`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import define, impl, register_fake

from ..runtime.inputs import check_counts
from . import prefill_plans as plans
from .common import DEVICES, TAGS, on_device, scales_kind, want_dimensions, want_head_dim
from .emulation import target_of

_PAGED = "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_ids, Tensor cu_seqlens_q, Tensor kv_lens"
_SCALES = "Tensor q_scale, Tensor k_scale, Tensor v_scale"
_ROWS = "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor kv_lens"
_OPTIONS = "float? softmax_scale=None"
_MASK = "Tensor? block_mask=None"
_OUT = "*, Tensor(a!) out"

for _name, _arguments in (
    ("attention_prefill_bf16", f"{_PAGED}, {_OPTIONS}, {_MASK}"),
    ("attention_prefill_fp8", f"{_PAGED}, {_SCALES}, {_OPTIONS}, {_MASK}"),
    ("attention_prefill_contiguous_bf16", f"{_ROWS}, {_OPTIONS}"),
):
    define(f"tle_attn::{_name}", f"({_arguments}) -> Tensor", tags=TAGS)
    define(f"tle_attn::{_name}_out", f"({_arguments}, {_OUT}) -> ()", tags=TAGS)


@impl("tle_attn::attention_prefill_bf16", DEVICES)
def _bf16(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Tensor, cu_seqlens_q: Tensor, kv_lens: Tensor, *options: Any) -> Tensor:
    return _prefill((q, k_cache, v_cache, block_ids, cu_seqlens_q, kv_lens), None, None, *options)


@impl("tle_attn::attention_prefill_bf16_out", DEVICES)
def _bf16_out(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Tensor, cu_seqlens_q: Tensor, kv_lens: Tensor, *options: Any, out: Tensor) -> None:
    _prefill((q, k_cache, v_cache, block_ids, cu_seqlens_q, kv_lens), None, out, *options)


@impl("tle_attn::attention_prefill_fp8", DEVICES)
def _fp8(*arguments: Any) -> Tensor:
    return _prefill(arguments[:6], arguments[6:9], None, *arguments[9:])


@impl("tle_attn::attention_prefill_fp8_out", DEVICES)
def _fp8_out(*arguments: Any, out: Tensor) -> None:
    _prefill(arguments[:6], arguments[6:9], out, *arguments[9:])


@impl("tle_attn::attention_prefill_contiguous_bf16", DEVICES)
def _contiguous(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, kv_lens: Tensor, *options: Any) -> Tensor:
    return _prefill((q, k, v, None, cu_seqlens_q, kv_lens), None, None, *options)


@impl("tle_attn::attention_prefill_contiguous_bf16_out", DEVICES)
def _contiguous_out(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, kv_lens: Tensor, *options: Any, out: Tensor) -> None:
    _prefill((q, k, v, None, cu_seqlens_q, kv_lens), None, out, *options)


@register_fake("tle_attn::attention_prefill_bf16")
@register_fake("tle_attn::attention_prefill_fp8")
@register_fake("tle_attn::attention_prefill_contiguous_bf16")
def _new_output(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[1], v_cache.shape[-1]), dtype=torch.bfloat16)


@register_fake("tle_attn::attention_prefill_bf16_out")
@register_fake("tle_attn::attention_prefill_fp8_out")
@register_fake("tle_attn::attention_prefill_contiguous_bf16_out")
def _no_output(*arguments: Any, **out: Any) -> None:
    return None


def _prefill(
    tensors: tuple[Any, ...], scales: tuple[Any, ...] | None, out: Tensor | None, softmax_scale: float | None = None, block_mask: Tensor | None = None
) -> Tensor:
    q, k_cache, _, block_ids, _, kv_lens = tensors
    want_dimensions("q", q, "rows, query_heads, head_dim")
    want_dimensions("kv_lens", kv_lens, "batch")
    if block_ids is None:
        want_dimensions("k", k_cache, "rows, kv_heads, head_dim")
        kind, page = "contiguous", None
    else:
        want_dimensions("k_cache", k_cache, "pages, page, kv_heads, head_dim")
        kind, page = scales_kind(scales), k_cache.shape[1]
    want_head_dim(q)
    kv_heads = k_cache.shape[-2]
    check_counts(len(kv_lens), q.shape[1], kv_heads)
    rows = plans.rows_of_plan(len(q))
    consumers = plans.consumers_of(len(q), len(kv_lens), q.shape[1], q.device)
    plan = plans.plan_for(kind, page, block_mask is not None, consumers, len(kv_lens), q.shape[1], kv_heads, rows, q.device, target_of(q.device))
    named = dict(zip(("q_scale", "k_scale", "v_scale"), scales or ()))
    with on_device(plan.device):
        out, _ = plan.run(*tensors, out=out, softmax_scale=softmax_scale, block_mask=block_mask, workspace=plans.workspace_of(plan), **named)
    return out
