"""Checks of what `run` is given: types, shapes, strides and devices, before anything is launched and without a host read of device data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any

from ..errors import InputError, InputTypeError
from ..spec import Argument, DType, Problem

if TYPE_CHECKING:
    import torch

F32_MAX = 2.0**128 - 2.0**104


@cache
def torch_dtype(dtype: DType) -> Any:
    import torch

    return getattr(torch, dtype.torch_name)


def want(tensor: Any, name: str, dtype: DType, shape: tuple[int | None, ...], device: Any, axes: str) -> torch.Tensor:
    """A tensor with this dtype, device and shape (None: any extent), or an error that names it."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise InputTypeError(f"{name}: a torch.Tensor is wanted, not {type(tensor).__name__}")
    if tensor.dtype != torch_dtype(dtype):
        raise InputTypeError(f"{name}: dtype {str(tensor.dtype).removeprefix('torch.')} where {dtype.torch_name} is wanted")
    if tensor.device.type != device.type or (device.index is not None and tensor.device.index != device.index):
        raise InputError(f"{name}: on {tensor.device}, but the plan is for {device}")
    got = tensor.shape
    if got != shape and (len(got) != len(shape) or any(w is not None and w != g for w, g in zip(shape, got))):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise InputError(f"{name}: shape {tuple(got)} where [{axes}] = ({wanted}) is wanted")
    return tensor


def check_counts(batch: Any, query_heads: Any, kv_heads: Any) -> None:
    """What a plan counts: sequences, from 0 up, and heads, from 1 up."""
    check_count("batch", batch, 0)
    check_count("query_heads", query_heads)
    check_count("kv_heads", kv_heads)


def check_count(name: str, value: Any, low: int = 1) -> None:
    """An integer from `low` up."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InputError(f"{name}: {value!r} where an integer from {low} up is wanted")


def check_softmax_scale(scale: Any) -> float:
    """A number on the host (a tensor would have to be read, which waits for the device) that float32 holds."""
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise InputTypeError(f"softmax_scale: a number is wanted, not {type(scale).__name__}")
    if not math.isfinite(scale):
        raise InputError(f"softmax_scale: {scale} is not finite")
    if abs(scale) * math.log2(math.e) > F32_MAX:
        raise InputError(f"softmax_scale: {scale} is not finite in float32")
    return float(scale)


def want_multiple(name: str, what: str, value: int, unit: int, reason: str) -> None:
    if value % unit:
        raise InputError(f"{name}: {what} {value} is not a multiple of {unit} ({reason})")


def check_queries(q: Any, problem: Problem, batch: int, query_heads: int, device: Any) -> torch.Tensor:
    """Q [batch * query tokens, query heads, head_dim]; any token and head stride that is a multiple of 16 elements."""
    rows = batch * problem.query_tokens
    if getattr(q, "ndim", None) == 3 and q.shape[0] != rows and batch and q.shape[0] % batch == 0:
        raise InputError(
            f"q: {q.shape[0]} rows for a batch of {batch} are {q.shape[0] // batch} query tokens per request, but the plan is for {problem.query_tokens}; "
            f"make a plan with query_tokens={q.shape[0] // batch} (supported: query_tokens * group <= 64)"
        )
    want(q, "q", problem.dtype, (rows, query_heads, problem.head_dim), device, "batch * query_tokens, query_heads, head_dim")
    if q.numel() and q.stride(2) != 1:
        raise InputError(f"q: stride {q.stride(2)} in the last dimension where 1 is wanted")
    want_multiple("q", "token stride", q.stride(0), 16, "16-byte loads")
    want_multiple("q", "head stride", q.stride(1), 16, "16-byte loads")
    want_multiple("q", "address", q.data_ptr(), 16, "16-byte loads")
    return q


def check_caches(k_cache: Any, v_cache: Any, problem: Problem, kv_heads: int, device: Any) -> None:
    """Both caches, of the same pages."""
    check_cache(k_cache, "k_cache", problem, problem.head_dim, kv_heads, device)
    check_cache(v_cache, "v_cache", problem, problem.v_dim, kv_heads, device)
    if k_cache.shape[0] != v_cache.shape[0]:
        raise InputError(f"v_cache: {v_cache.shape[0]} pages where k_cache has {k_cache.shape[0]}; a page id names a page of both")


def check_cache(cache: Any, name: str, problem: Problem, dim: int, kv_heads: int, device: Any) -> torch.Tensor:
    """A cache as the logical view [pages, page, kv heads, dim]; NHD and HND (and slices of a larger cache) differ in strides."""
    want(cache, name, problem.dtype, (None, problem.page, kv_heads, dim), device, "pages, page, kv_heads, head_dim")
    if cache.shape[0] == 0:
        raise InputError(f"{name}: no pages; TMA cannot describe an empty cache")
    check_tma(cache, name, ("page", "token", "head"))
    return cache


def check_rooms(k: Any, v: Any, problem: Problem, batch: int, kv_heads: int, device: Any) -> None:
    """K and V without pages: [batch, room, kv heads, dim], of one room."""
    for name, tensor, dim in (("k_cache", k, problem.head_dim), ("v_cache", v, problem.v_dim)):
        want(tensor, name, problem.dtype, (batch, None, kv_heads, dim), device, "batch, room, kv_heads, head_dim")
        if batch and tensor.shape[1] == 0:
            raise InputError(f"{name}: room for no token; TMA cannot describe an empty tensor")
        check_tma(tensor, name, ("sequence", "token", "head"))
    if k.shape[1] != v.shape[1]:
        raise InputError(f"v_cache: room for {v.shape[1]} tokens where k_cache has {k.shape[1]}")


def check_tma(tensor: torch.Tensor, name: str, axes: tuple[str, ...]) -> None:
    """Strides and address that TMA can describe: whole 16 bytes before a dense last dimension; `axes` names the others."""
    if tensor.stride(-1) != 1:
        raise InputError(f"{name}: stride {tensor.stride(-1)} in the last dimension where 1 is wanted (TMA)")
    for dim, axis in enumerate(axes):
        if tensor.shape[dim] > 1:
            want_multiple(name, f"{axis} stride in bytes", tensor.stride(dim) * tensor.element_size(), 16, "TMA")
    want_multiple(name, "address", tensor.data_ptr(), 16, "TMA")


def check_table(block_ids: Any, kv_lens: Any, batch: int, device: Any) -> None:
    """Page ids int32 [batch, width] and lengths int32 [batch]."""
    want(block_ids, "block_ids", DType.I32, (batch, None), device, "batch, pages of the longest sequence")
    if block_ids.shape[1] > 1 and block_ids.stride(1) != 1:
        raise InputError(f"block_ids: stride {block_ids.stride(1)} in the last dimension where 1 is wanted")
    check_lens(kv_lens, batch, device)


def check_lens(kv_lens: Any, batch: int, device: Any) -> None:
    """Lengths int32 [batch]."""
    want(kv_lens, "kv_lens", DType.I32, (batch,), device, "batch")
    if batch > 1 and kv_lens.stride(0) != 1:
        raise InputError(f"kv_lens: stride {kv_lens.stride(0)} where 1 is wanted")


def check_argument(argument: Argument, value: Any, device: Any, sizes: Mapping[str, int]) -> Any:
    """What is given for an argument that a block brings: a tensor of its type and shape on the device, or a number; bool tensors are bytes."""
    import torch

    name, kind = argument.name, argument.type
    if not isinstance(kind, str):
        raise InputTypeError(f"{name}: descriptors of blocks cannot be given to run")
    if kind.startswith("*"):
        if kind == "*u8" and isinstance(value, torch.Tensor) and value.dtype == torch.bool:
            value = value.view(torch.uint8)
        if argument.shape is None:
            want(value, name, DType(kind[1:]), (None,) * getattr(value, "ndim", 0), device, argument.doc)
        else:
            shape = tuple(sizes[n] if isinstance(n, str) else n for n in argument.shape)
            want(value, name, DType(kind[1:]), shape, device, ", ".join("any" if n is None else str(n) for n in argument.shape))
        if not value.is_contiguous():
            raise InputError(f"{name}: must be contiguous; its strides are {tuple(value.stride())}")
        return value
    wanted = Real if kind.startswith("f") else int
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise InputTypeError(f"{name}: {'a number' if wanted is Real else 'an integer'} is wanted ({argument.doc}), not {type(value).__name__}")
    return value


def check_output(out: Any, name: str, dtype: DType, shape: tuple[int, ...], device: Any, axes: str) -> torch.Tensor:
    want(out, name, dtype, shape, device, axes)
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(out.stride(), out.shape) if n > 1):
        if out.numel() and stride <= reach:
            raise InputError(f"{name}: strides {tuple(out.stride())} of shape {tuple(out.shape)} put two elements in one place")
        reach += (size - 1) * stride
    if out.numel() and out.stride(-1) != 1:
        raise InputError(f"{name}: stride {out.stride(-1)} in the last dimension where 1 is wanted")
    return out


def check_aligned(tensor: torch.Tensor, name: str) -> None:
    """What a kernel reads or writes in vectors of 16 bytes along the last dimension."""
    if tensor.numel():
        if tensor.stride(-1) != 1:
            raise InputError(f"{name}: stride {tensor.stride(-1)} in the last dimension where 1 is wanted")
        for dim in range(tensor.dim() - 1):
            if tensor.shape[dim] > 1:
                want_multiple(name, f"stride of dimension {dim}", tensor.stride(dim), 16, "counted in elements; rows are read or written in vectors")
        want_multiple(name, "address", tensor.data_ptr(), 16, "vectors of 16 bytes")


def check_presence(kernel: Any, given: dict[str, Any]) -> bool:
    """Whether the kernel takes scales; each that it takes is given, and none that it would not use."""
    fp8 = kernel.problem.dtype is DType.FP8
    for name, scale in given.items():
        if fp8 and scale is None:
            raise InputError(f"{name}: missing; {kernel.name} takes fp8 tensors, which mean nothing without their scales ({kernel.mainloop.scale.label()})")
        if not fp8 and scale is not None:
            raise InputError(f"{name}: {kernel.name} takes {kernel.problem.dtype.value} tensors, which have no scales")
    return fp8


def check_scales(kernel: Any, batch: int, query_heads: int, kv_heads: int, pages: int, device: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Scales of a decode kernel's fp8 tensors by kernel argument: float32, Q's a row for each row of q."""
    if not check_presence(kernel, given):
        return {}
    q_scale = want(given["q_scale"], "q_scale", DType.F32, (batch * kernel.problem.query_tokens, query_heads), device, "batch * query_tokens, query_heads")
    if query_heads > 1 and q_scale.stride(1) != 1:
        raise InputError(f"q_scale: stride {q_scale.stride(1)} in the last dimension where 1 is wanted")
    return {"q_scale": q_scale, "q_scale_stride": q_scale.stride(0), **check_kv_scales(kernel, kv_heads, pages, device, given["k_scale"], given["v_scale"])}


def check_kv_scales(kernel: Any, kv_heads: int, pages: int, device: Any, k_scale: Any, v_scale: Any) -> dict[str, Any]:
    """Scales of an fp8 cache by kernel argument: one each, or one of every key (in rows of 32 by page and head) and of every head's values, or of every value too."""
    page, scale = kernel.problem.page, kernel.mainloop.scale
    values: dict[str, Any] = {}
    if scale.VALUE_SCALES:
        values |= _token_scales("v_scale", v_scale, page, kv_heads, pages, device)
    else:
        want(v_scale, "v_scale", DType.F32, (kv_heads if scale.KEY_SCALES else 1,), device, "kv_heads" if scale.KEY_SCALES else "1")
        if v_scale.numel() > 1 and v_scale.stride(0) != 1:
            raise InputError(f"v_scale: stride {v_scale.stride(0)} where 1 is wanted")
        values["v_scale"] = v_scale
    if not scale.KEY_SCALES:
        return values | {"k_scale": want(k_scale, "k_scale", DType.F32, (1,), device, "1")}
    return values | _token_scales("k_scale", k_scale, page, kv_heads, pages, device)


def _token_scales(name: str, scale: Any, page: int, kv_heads: int, pages: int, device: Any) -> dict[str, Any]:
    """A scale of every token and head, float32 in rows of 32 by page and head, and its strides, by kernel argument."""
    import torch

    rows = -(-page // 32)
    if isinstance(scale, torch.Tensor) and scale.dtype == torch.float8_e4m3fn:  # the extra rows of the cache, as hpc-ops keeps those of K
        want(scale, name, DType.FP8, (None, rows, kv_heads, 128), device, "pages, ceil(page / 32), kv_heads, 128 bytes")
        if scale.stride(3) != 1 or scale.data_ptr() % 4 or any(scale.stride(i) % 4 for i in range(3)):
            raise InputError(f"{name}: strides {tuple(scale.stride())} where 1 in the last dimension and multiples of 4 bytes in the others are wanted")
        scale = scale.view(torch.float32)
    want(scale, name, DType.F32, (None, rows, kv_heads, 32), device, "pages, ceil(page / 32), kv_heads, 32")
    if scale.shape[0] < pages:
        raise InputError(f"{name}: {scale.shape[0]} pages, but the cache has {pages}")
    if scale.stride(3) != 1:
        raise InputError(f"{name}: stride {scale.stride(3)} in the last dimension where 1 is wanted")
    return {name: scale, **{f"{name}_{what}_stride": scale.stride(i) for i, what in enumerate(("page", "row", "head"))}}


def check_values(block_ids: torch.Tensor | None, kv_lens: torch.Tensor, new_tokens: int, kernel: Any, k_cache: torch.Tensor) -> None:
    """Debug mode: read lengths and page ids on the host and refuse what a decode kernel would read out of range."""
    lens = (kv_lens.cpu() + new_tokens).tolist()
    if block_ids is None:
        for b, length in enumerate(lens):
            if not 0 <= length <= k_cache.shape[1]:
                raise InputError(f"kv_lens[{b}]: {length} tokens, but k_cache has room for {k_cache.shape[1]}")
        return
    check_pages(kernel, block_ids, lens, lens, k_cache.shape[0])


def check_pages(kernel: Any, block_ids: torch.Tensor, lens: list[int], ends: list[int], pages: int) -> None:
    """Every page of a sequence that holds a key which one of its queries sees is one of the cache's.  ends: keys up to those of a kernel's `query_tokens` first queries."""
    table, page = block_ids.cpu(), kernel.problem.page
    for b, (length, end) in enumerate(zip(lens, ends, strict=True)):
        if length < 0 or length > table.shape[1] * page:
            raise InputError(f"kv_lens[{b}]: {length} tokens, but block_ids has {table.shape[1]} pages of {page} a sequence")
        first = max(block.first_key(kernel.problem, end) for _, block in kernel.blocks) // page
        used = table[b, first : -(-length // page)]
        bad = ((used < 0) | (used >= pages)).nonzero()
        if len(bad):
            j = first + int(bad[0])
            raise InputError(f"block_ids[{b}, {j}]: page {int(table[b, j])} is in use, but the cache has pages 0 to {pages - 1} (batch {b}, logical page {j})")
