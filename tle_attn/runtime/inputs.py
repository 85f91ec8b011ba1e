"""Checks of what `run` is given: types, shapes, strides and devices, before anything is launched and without a host read of device data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InputError, InputTypeError
from ..spec import DType, Problem

if TYPE_CHECKING:
    import torch


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
    if tensor.dim() != len(shape) or any(w is not None and w != got for w, got in zip(shape, tensor.shape)):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise InputError(f"{name}: shape {tuple(tensor.shape)} where [{axes}] = ({wanted}) is wanted")
    return tensor


def want_multiple(name: str, what: str, value: int, unit: int, reason: str) -> None:
    if value % unit:
        raise InputError(f"{name}: {what} {value} is not a multiple of {unit} ({reason})")


def check_queries(q: Any, problem: Problem, batch: int, query_heads: int, device: Any) -> torch.Tensor:
    """Q [batch * query tokens, query heads, head_dim]; any token and head stride that is a multiple of 16 elements."""
    rows = batch * problem.query_tokens
    if getattr(q, "ndim", None) == 3 and q.shape[0] != rows and batch and q.shape[0] % batch == 0:
        raise InputError(
            f"q: {q.shape[0]} rows for a batch of {batch} are {q.shape[0] // batch} query tokens per request, but the plan is for {problem.query_tokens}; "
            f"make a plan with query_tokens={q.shape[0] // batch} (supported: 1 to 5, and query_tokens * group <= 64)"
        )
    want(q, "q", problem.dtype, (rows, query_heads, problem.head_dim), device, "batch * query_tokens, query_heads, head_dim")
    if q.numel() and q.stride(2) != 1:
        raise InputError(f"q: stride {q.stride(2)} in the last dimension where 1 is wanted")
    want_multiple("q", "token stride", q.stride(0), 16, "16-byte loads")
    want_multiple("q", "head stride", q.stride(1), 16, "16-byte loads")
    want_multiple("q", "address", q.data_ptr(), 16, "16-byte loads")
    return q


def check_cache(cache: Any, name: str, problem: Problem, kv_heads: int, device: Any) -> torch.Tensor:
    """A cache as the logical view [pages, page, kv heads, head_dim]; NHD and HND (and slices of a larger cache) differ in strides."""
    want(cache, name, problem.dtype, (None, problem.page, kv_heads, problem.head_dim), device, "pages, page, kv_heads, head_dim")
    size = problem.dtype.nbytes
    if cache.shape[0] == 0:
        raise InputError(f"{name}: no pages; TMA cannot describe an empty cache")
    if cache.stride(3) != 1:
        raise InputError(f"{name}: stride {cache.stride(3)} in the last dimension where 1 is wanted (TMA)")
    for dim, axis in enumerate(("page", "token", "head")):
        if cache.shape[dim] > 1:
            want_multiple(name, f"{axis} stride in bytes", cache.stride(dim) * size, 16, "TMA")
    want_multiple(name, "address", cache.data_ptr(), 16, "TMA")
    return cache


def check_table(block_ids: Any, kv_lens: Any, batch: int, device: Any) -> None:
    """Page ids int32 [batch, width] and lengths int32 [batch]."""
    want(block_ids, "block_ids", DType.I32, (batch, None), device, "batch, pages of the longest sequence")
    if block_ids.shape[1] > 1 and block_ids.stride(1) != 1:
        raise InputError(f"block_ids: stride {block_ids.stride(1)} in the last dimension where 1 is wanted")
    want(kv_lens, "kv_lens", DType.I32, (batch,), device, "batch")
    if batch > 1 and kv_lens.stride(0) != 1:
        raise InputError(f"kv_lens: stride {kv_lens.stride(0)} where 1 is wanted")


def check_output(out: Any, name: str, dtype: DType, shape: tuple[int, ...], device: Any, axes: str) -> torch.Tensor:
    want(out, name, dtype, shape, device, axes)
    if out.numel() and out.stride(-1) != 1:
        raise InputError(f"{name}: stride {out.stride(-1)} in the last dimension where 1 is wanted")
    return out


def check_values(block_ids: torch.Tensor, kv_lens: torch.Tensor, new_tokens: int, page: int, pages: int) -> None:
    """Debug mode: read lengths and page ids on the host and refuse what the kernel would read out of range."""
    table, lens = block_ids.cpu(), kv_lens.cpu() + new_tokens
    for b, length in enumerate(lens.tolist()):
        if length < 0 or length > table.shape[1] * page:
            raise InputError(f"kv_lens[{b}]: {length} tokens, but block_ids has {table.shape[1]} pages of {page} a sequence")
        used = table[b, : -(-length // page)]
        bad = ((used < 0) | (used >= pages)).nonzero()
        if len(bad):
            j = int(bad[0])
            raise InputError(f"block_ids[{b}, {j}]: page {int(used[j])} is in use, but the cache has pages 0 to {pages - 1} (batch {b}, logical page {j})")
