"""Where tensors share memory: an output may be one of the inputs, element for element, and nothing else of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    import torch


def check_same_or_apart(out: torch.Tensor, name: str, read: torch.Tensor, read_name: str) -> None:
    """Raise InputError where `out` shares memory with `read` otherwise than element for element: some rows would be written before they are read."""
    if out.untyped_storage().data_ptr() != read.untyped_storage().data_ptr() or not (out.numel() and read.numel()):
        return
    here, there = _strides(out), _strides(read)
    distance = read.data_ptr() - out.data_ptr()
    if out.dtype == read.dtype and here == there and distance == 0:
        return
    largest_first = sorted(here, reverse=True)
    alike = out.dtype == read.dtype and largest_first == sorted(there, reverse=True)
    if _meet(largest_first, distance // out.element_size()) if alike else _ranges_meet(out, read):
        raise InputError(f"{name}: shares memory with {read_name}, but not element for element; it may be {read_name} itself, or memory apart from it")


def _strides(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """(stride, extent) of the dimensions that move."""
    return [(s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1]


def _meet(strides: list[tuple[int, int]], distance: int) -> bool:
    """Whether two tensors with these strides, the largest first and no two elements of one in one place, have an element in common at this distance."""
    if not strides:
        return distance == 0
    (stride, extent), *rest = strides
    return any(abs(steps) < extent and _meet(rest, distance - steps * stride) for steps in (distance // stride, distance // stride + 1))


def _ranges_meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the bytes from first to last element overlap."""
    ends = [t.data_ptr() + t.element_size() * (1 + sum(s * (n - 1) for s, n in zip(t.stride(), t.shape))) for t in (a, b)]
    return a.data_ptr() < ends[1] and b.data_ptr() < ends[0]
