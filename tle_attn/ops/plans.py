"""Plans behind the operators: made at the first call of a geometry and kept; they own no memory.

Partial results come from torch's caching allocator at each call, as outputs do: that is right on every stream and in every graph capture.  What must
persist, counters that are zero between launches, is cut from a reserve for each stream and never freed, because captured graphs hold its address.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import torch
from attrs import define, field

import tle_attn

from ..errors import InputError, SpecError, TleAttnError
from ..runtime.decode import DecodePlan, idle_tasks, plan_decode, task_capacity
from ..runtime.executors import EmulatedExecutor, make_executor
from ..runtime.inputs import torch_dtype
from ..spec import Kernel

#: recipe by what a scale of K belongs to, or, of every token and head, of K and V
RECIPES = {"none": "hy3/decode_bf16", "tensor": "hy3/decode_fp8", "token_head": "hy3/decode_fp8_per_token", "token_head_kv": "variants/decode_fp8_kv_per_token"}
#: a task map is planned without a page table, and serves caches of any page size
WITHOUT_IDS = {"schedule.page_ids": False}
#: CTAs of a multiprocessor that a task map counts on: it is planned before it is known which of the kernels will use it, and all of them fit twice
CTAS_PER_SM = 2
#: (largest batch, parts of a sequence, tokens of a part at least) of the static split, as in the CUDA reference: many sequences fill the GPU by themselves
STATIC_SPLITS = ((32, 16, 512), (None, 4, 4096))


def task_slots(device: torch.device, target: str) -> int:
    """CTAs that a task map for this device has tasks for."""
    if target == "cpu":
        return CTAS_PER_SM * EmulatedExecutor.SMS
    return CTAS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count


def task_records(device: torch.device, target: str, batch: int, kv_heads: int) -> int:
    """Records of a task map for up to `batch` sequences."""
    return task_capacity(task_slots(device, target), batch, kv_heads)


def new_task_map(device: torch.device, target: str, batch: int, kv_heads: int) -> torch.Tensor:
    """A task map, int32, in which nothing is planned yet."""
    return idle_tasks(task_records(device, target, batch, kv_heads), device)


def split_of(batch: int, split: bool) -> tuple[int, int]:
    """(parts, tokens of a part at least) of the static split for a batch."""
    if not split:
        return 1, STATIC_SPLITS[0][2]
    return next((parts, tokens) for largest, parts, tokens in STATIC_SPLITS if largest is None or batch <= largest)


def static_options(parts: int, tokens: int) -> dict[str, Any]:
    """Recipe options of a static split."""
    return {"schedule.block": "static_split", "schedule.splits": parts, "schedule.min_tokens": tokens}


@cache
def kernel_for(scales: str, query_tokens: int, page: int, group: int, static: tuple[int, int] | None) -> Kernel:
    """The kernel of a geometry: planned, or with a static split of (parts, tokens of a part at least)."""
    recipe = tle_attn.load(RECIPES[scales]).set(static_options(*static) if static else WITHOUT_IDS)
    try:
        return recipe.kernel(query_tokens=query_tokens, page=page, group=group)
    except SpecError as error:
        key = (error.key or "").removeprefix("problem.")
        tensor = {"page": "k_cache", "group": "q", "query_tokens": "q"}.get(key, key)
        raise InputError(f"{tensor}: {error.message}; allowed: {error.allowed} ({error.reason})") from None


@cache
def executor_for(kernel: Kernel, device: torch.device, target: str, entries: tuple[str, ...] | None = None) -> Any:
    """What runs a kernel; shared by the plans of all batch sizes."""
    refuse_in_capture(f"{kernel.name} is compiled and loaded at its first call")
    return make_executor(kernel, target, device, entries=entries)


@cache
def plan_for(scales: str, query_tokens: int, page: int, batch: int, query_heads: int, kv_heads: int, planned: bool, split: bool, device: torch.device, target: str) -> DecodePlan:
    """The plan of a geometry: by a task map, or with a static split."""
    if query_heads % kv_heads:
        raise InputError(f"q: {query_heads} heads, which is no multiple of the {kv_heads} heads of k_cache")
    kernel = kernel_for(scales, query_tokens, page, query_heads // kv_heads, None if planned else split_of(batch, split))
    executor = executor_for(kernel, device, target)
    slots = task_slots(device, target)
    resident = executor.resident_ctas(kernel.mainloop.ENTRIES[0])
    if planned and resident < slots:
        raise TleAttnError(f"{kernel.name}: {resident} CTAs are resident at once where task maps count on {slots}")
    geometry = {"batch": batch, "query_heads": query_heads, "kv_heads": kv_heads}
    return plan_decode(kernel, **geometry, device=device, target=target, executor=executor, slots=slots, owns_workspace=False)


def planner_kernel(query_tokens: int, min_tokens: int) -> Kernel:
    """A kernel of which only the planner is used: task records depend on neither element type, page nor group."""
    return tle_attn.load(RECIPES["tensor"]).set({**WITHOUT_IDS, "schedule.min_tokens": min_tokens}).kernel(query_tokens=query_tokens, page=64, group=1)


@cache
def planner_for(query_tokens: int, min_tokens: int, batch: int, kv_heads: int, device: torch.device, target: str) -> DecodePlan:
    """The plan that fills task maps for a batch."""
    kernel = planner_kernel(query_tokens, min_tokens)
    executor = executor_for(kernel, device, target, ("plan_tasks",))
    geometry = {"batch": batch, "query_heads": kv_heads, "kv_heads": kv_heads}
    return plan_decode(kernel, **geometry, device=device, target=target, executor=executor, slots=task_slots(device, target), owns_workspace=False)


def refuse_in_capture(what: str) -> None:
    """An error in a CUDA graph capture, for what can only be done outside of one."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise TleAttnError(f"{what}, which a CUDA graph cannot capture; call the operator once with this geometry before the capture")


@define
class Counters:
    """int32 words of a device that are zero between launches, apart for each stream."""

    device: torch.device
    pieces: dict[int, torch.Tensor] = field(factory=dict)  #: by stream
    chunks: list[torch.Tensor] = field(factory=list)  #: zeroed memory; kept even where no piece of it is in use, for captured graphs
    free: int = 0  #: words of the last chunk that no piece has
    lock: threading.Lock = field(factory=threading.Lock, repr=False)

    CHUNK = 1 << 18
    PIECE = 1 << 12

    def of_current_stream(self, count: int) -> torch.Tensor:
        """At least `count` words."""
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0
        piece = self.pieces.get(stream)
        if piece is None or piece.numel() < count:
            piece = self.pieces[stream] = self.cut(max(self.PIECE, 1 << (count - 1).bit_length()))
        return piece

    def cut(self, count: int) -> torch.Tensor:
        with self.lock:
            if self.free < count:
                refuse_in_capture("counters are zeroed at the first call")
                self.chunks.append(torch.zeros(max(self.CHUNK, count), dtype=torch.int32, device=self.device))
                self.free = self.chunks[-1].numel()
                if self.device.type == "cuda":
                    torch.cuda.current_stream(self.device).synchronize()  # other streams get pieces of it
            self.free -= count
            return self.chunks[-1][self.free : self.free + count]


counters_of = cache(Counters)


def workspace_of(plan: DecodePlan, tasks: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Memory for one call of a plan that owns none."""
    workspace = {name: torch.empty(plan.needs[name][1], dtype=torch_dtype(plan.needs[name][0]), device=plan.device) for name in ("partial_o", "partial_ml")}
    workspace["counters"] = counters_of(plan.device).of_current_stream(plan.needs["counters"][1])
    if tasks is not None:
        workspace["tasks"] = tasks
    return workspace
