"""Decode as torch operators: schemas, launches, and what a compiler needs to know about results.

`tle_attn::attention_decode_bf16` and `_fp8` return a new tensor, their `_out` forms write into one and return nothing;
`tle_attn::plan_decode_tasks` fills a task map.  The meaning of tensors is that of `tle_attn.Plan.run`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import define, impl, register_fake

from ..errors import InputError, InputTypeError
from ..runtime.decode import DecodePlan
from ..runtime.inputs import check_counts
from . import plans
from .common import DEVICES, TAGS, on_device, scales_kind, want_dimensions, want_head_dim
from .emulation import emulating, target_of

TILE = 64
MAX_QUERY_TOKENS = 5

_TENSORS = "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_ids, Tensor kv_lens"
_SCALES = "Tensor q_scale, Tensor k_scale, Tensor v_scale"
_OPTIONS = "int query_tokens=1, bool new_kv_included=True, bool split=True, float? softmax_scale=None, Tensor? tasks=None"
_OUT = "*, Tensor(a!) out"

define("tle_attn::attention_decode_bf16", f"({_TENSORS}, {_OPTIONS}) -> Tensor", tags=TAGS)
define("tle_attn::attention_decode_bf16_out", f"({_TENSORS}, {_OPTIONS}, {_OUT}) -> ()", tags=TAGS)
define("tle_attn::attention_decode_fp8", f"({_TENSORS}, {_SCALES}, {_OPTIONS}) -> Tensor", tags=TAGS)
define("tle_attn::attention_decode_fp8_out", f"({_TENSORS}, {_SCALES}, {_OPTIONS}, {_OUT}) -> ()", tags=TAGS)
define(
    "tle_attn::plan_decode_tasks",
    "(Tensor kv_lens, Tensor(a!) tasks, int kv_heads, int query_tokens=1, bool new_kv_included=True, int min_tokens=512) -> ()", tags=TAGS,
)  # fmt: skip


@impl("tle_attn::attention_decode_bf16", DEVICES)
def _decode_bf16(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Tensor, kv_lens: Tensor, *options: Any) -> Tensor:
    return _decode((q, k_cache, v_cache, block_ids, kv_lens), None, None, *options)


@impl("tle_attn::attention_decode_bf16_out", DEVICES)
def _decode_bf16_out(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Tensor, kv_lens: Tensor, *options: Any, out: Tensor) -> None:
    _decode((q, k_cache, v_cache, block_ids, kv_lens), None, out, *options)


@impl("tle_attn::attention_decode_fp8", DEVICES)
def _decode_fp8(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Tensor, kv_lens: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, *options: Any
) -> Tensor:
    return _decode((q, k_cache, v_cache, block_ids, kv_lens), (q_scale, k_scale, v_scale), None, *options)


@impl("tle_attn::attention_decode_fp8_out", DEVICES)
def _decode_fp8_out(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Tensor, kv_lens: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, *options: Any, out: Tensor
) -> None:
    _decode((q, k_cache, v_cache, block_ids, kv_lens), (q_scale, k_scale, v_scale), out, *options)


@register_fake("tle_attn::attention_decode_bf16")
@register_fake("tle_attn::attention_decode_fp8")
def _new_output(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[1], v_cache.shape[3]), dtype=torch.bfloat16)


@register_fake("tle_attn::attention_decode_bf16_out")
@register_fake("tle_attn::attention_decode_fp8_out")
@register_fake("tle_attn::plan_decode_tasks")
def _no_output(*arguments: Any, **out: Any) -> None:
    return None


def _decode(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    scales: tuple[Tensor, Tensor, Tensor] | None,
    out: Tensor | None,
    query_tokens: int = 1,
    new_kv_included: bool = True,
    split: bool = True,
    softmax_scale: float | None = None,
    tasks: Tensor | None = None,
) -> Tensor:
    q, k_cache, _, _, kv_lens = tensors
    if tasks is not None and not split:
        raise InputError("split: False keeps requests whole, and the task map says where they are cut; give one of them")
    plan = _plan(q, k_cache, kv_lens, scales_kind(scales), query_tokens, tasks is not None, split)
    records = None if tasks is None else _records(tasks, plan)
    named = dict(zip(("q_scale", "k_scale", "v_scale"), scales or ()))
    with on_device(plan.device):
        workspace = plans.workspace_of(plan, records)
        out, _ = plan.run(
            *tensors, out=out, new_kv_included=new_kv_included, softmax_scale=softmax_scale, scheduled=records is not None, workspace=workspace, **named
        )
    return out


@impl("tle_attn::plan_decode_tasks", DEVICES)
def _plan_decode_tasks(
    kv_lens: Tensor, tasks: Tensor, kv_heads: int, query_tokens: int = 1, new_kv_included: bool = True, min_tokens: int = 512
) -> None:
    want_dimensions("kv_lens", kv_lens, "batch")
    _check_query_tokens(query_tokens)
    check_counts(len(kv_lens), 1, kv_heads)
    if min_tokens < TILE or min_tokens % TILE:
        raise InputError(f"min_tokens: {min_tokens} where a multiple of {TILE} is wanted (tasks are whole key tiles)")
    plan = plans.planner_for(query_tokens, min_tokens, len(kv_lens), kv_heads, tasks.device, target_of(tasks.device))
    records = _records(tasks, plan)
    with on_device(plan.device):
        plan.schedule(kv_lens, new_kv_included=new_kv_included, workspace={"tasks": records})


def new_task_map(max_batch: int, kv_heads: int, *, device: torch.device | str | None = None) -> Tensor:
    """A task map for up to `max_batch` sequences: int32, idle until `torch.ops.tle_attn.plan_decode_tasks` fills it.

    It is small (32 bytes a task), serves all layers and steps, and holds for kernels on this kind of GPU only.
    `device`: the current GPU if not given, the CPU where the emulation was chosen.
    """
    check_counts(max_batch, 1, kv_heads)
    if device is None:
        device = "cpu" if emulating() or not torch.cuda.is_available() else torch.device("cuda", torch.cuda.current_device())
    device = torch.device(device)
    return plans.new_task_map(device, target_of(device), max_batch, kv_heads)


def _plan(q: Tensor, k_cache: Tensor, kv_lens: Tensor, scales: str, query_tokens: int, planned: bool, split: bool) -> DecodePlan:
    """The plan for these tensors; what it does not depend on is checked by its `run`."""
    want_dimensions("q", q, "batch * query_tokens, query_heads, head_dim")
    want_dimensions("k_cache", k_cache, "pages, page, kv_heads, head_dim")
    want_dimensions("kv_lens", kv_lens, "batch")
    _check_query_tokens(query_tokens)
    batch = len(kv_lens)
    if len(q) != batch * query_tokens:
        raise InputError(f"q: {len(q)} rows where {batch * query_tokens} are wanted: {query_tokens} = query_tokens for each of {batch} sequences")
    want_head_dim(q)
    check_counts(batch, q.shape[1], k_cache.shape[2])
    return plans.plan_for(scales, query_tokens, k_cache.shape[1], batch, q.shape[1], k_cache.shape[2], planned, split, q.device, target_of(q.device))


def _check_query_tokens(query_tokens: int) -> None:
    if not 1 <= query_tokens <= MAX_QUERY_TOKENS:
        raise InputError(f"query_tokens: {query_tokens} where 1 to {MAX_QUERY_TOKENS} are supported; longer queries are prefill")


def _records(tasks: Tensor, plan: DecodePlan) -> Tensor:
    """A task map as int32 words; it may be given as bytes."""
    if tasks.dtype not in (torch.int8, torch.int32):
        raise InputTypeError(f"tasks: dtype {str(tasks.dtype).removeprefix('torch.')} where int32 or int8 is wanted")
    if not tasks.is_contiguous() or tasks.data_ptr() % 16:
        raise InputError("tasks: must be contiguous and start at a multiple of 16 bytes")
    size, wanted = tasks.numel() * tasks.element_size(), plan.needs["tasks"][1] * 4
    if size < wanted:
        raise InputError(f"tasks: {size} bytes where {wanted} are wanted for a batch of {plan.batch} with {plan.kv_heads} kv_heads; make the map for a larger batch")
    return tasks.view(-1) if tasks.dtype == torch.int32 else tasks.view(-1)[:wanted].view(torch.int32)
