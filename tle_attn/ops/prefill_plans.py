"""Plans behind the prefill operators: one for each geometry and power of two of query rows; they own no memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

import tle_attn

from ..errors import InputError, SpecError
from ..runtime.executors import EmulatedExecutor
from ..runtime.inputs import torch_dtype
from ..runtime.prefill import PrefillPlan, consumers_for, plan_prefill
from ..spec import Kernel
from .plans import counters_of, executor_for

#: recipe by what a scale of K belongs to, or, of every token and head, of K and V; and for K and V without pages
RECIPES = {
    "none": "hy3/prefill_bf16", "tensor": "hy3/prefill_fp8", "token_head": "hy3/prefill_fp8_per_token", "token_head_kv": "variants/prefill_fp8_kv_per_token",
    "contiguous": "hy3/prefill_bf16_contiguous",
}  # fmt: skip
#: rows that plans are made for: few plans serve all batches, and what a plan costs for rows that are not there is some bytes of unit records
LEAST_ROWS = 1024


@cache
def kernel_for(kind: str, page: int | None, group: int, masked: bool, consumers: int) -> Kernel:
    """The kernel of a geometry; `page`: None for K and V without pages."""
    recipe = tle_attn.load(RECIPES[kind])
    if masked:
        recipe = recipe.set({"tiles.block": "block_mask"})
    if consumers == 1:
        recipe = recipe.set({"mainloop.consumers": 1})
    problem = {"group": group} if page is None else {"group": group, "page": page}
    try:
        return recipe.kernel(**problem)
    except SpecError as error:
        tensor = {"problem.page": "k_cache", "problem.group": "q"}.get(error.key or "", error.key)
        raise InputError(f"{tensor}: {error.message}; allowed: {error.allowed} ({error.reason})") from None


@cache
def plan_for(kind: str, page: int | None, masked: bool, consumers: int, batch: int, query_heads: int, kv_heads: int, rows: int, device: torch.device, target: str) -> PrefillPlan:
    """The plan of a geometry for up to `rows` query rows."""
    if query_heads % kv_heads:
        raise InputError(f"q: {query_heads} heads, which is no multiple of the {kv_heads} heads of k_cache")
    kernel = kernel_for(kind, page, query_heads // kv_heads, masked, consumers)
    executor = executor_for(kernel, device, target)
    geometry = {"batch": batch, "query_heads": query_heads, "kv_heads": kv_heads, "max_query_rows": rows}
    return plan_prefill(kernel, **geometry, device=device, target=target, executor=executor, owns_workspace=False)


def consumers_of(rows: int, batch: int, query_heads: int, device: torch.device) -> int:
    """Consumers of the kernel for so many rows."""
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else EmulatedExecutor.SMS
    return consumers_for(rows, batch, query_heads, multiprocessors)


def rows_of_plan(rows: int) -> int:
    """Rows that the plan for so many is made for."""
    return max(LEAST_ROWS, 1 << (rows - 1).bit_length() if rows else 0)


def workspace_of(plan: PrefillPlan) -> dict[str, Any]:
    """Memory for one call: unit records from torch's allocator, the queue from the stream's counters."""
    workspace = {name: torch.empty(count, dtype=torch_dtype(dtype), device=plan.device) for name, (dtype, count) in plan.needs.items() if name not in plan.ZEROED}
    for name in plan.ZEROED:
        if name in plan.needs:
            workspace[name] = counters_of(plan.device).of_current_stream(plan.needs[name][1])
    return workspace
