"""What operators of every phase share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, InputTypeError

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
DEVICES = ("cpu", "cuda")
#: operators have one; other kernels of the library run through plans
HEAD_DIM = 128


def want_dimensions(name: str, tensor: Tensor, axes: str) -> None:
    wanted = axes.count(",") + 1
    if not isinstance(tensor, Tensor):
        raise InputTypeError(f"{name}: a torch.Tensor is wanted, not {type(tensor).__name__}")
    if tensor.dim() != wanted:
        raise InputError(f"{name}: shape {tuple(tensor.shape)} where [{axes}] is wanted")


def want_head_dim(q: Tensor) -> None:
    if q.shape[2] != HEAD_DIM:
        raise InputError(f"q: head_dim {q.shape[2]} where {HEAD_DIM} is wanted; a recipe may choose another, an operator has this one")


def scales_kind(scales: tuple[Tensor, Tensor, Tensor] | None) -> str:
    """What the scales of K and V belong to, by their shapes: a tensor, or every token and head of K, or of both; "none" for BF16.  scales: of Q, K and V."""
    if scales is None:
        return "none"
    _, k_scale, v_scale = scales
    return "tensor" if k_scale.dim() <= 1 else "token_head" if v_scale.dim() <= 1 else "token_head_kv"


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """The device of the launches inside."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
