"""Merging of partial results as torch operators and as the function `tle_attn.merge_states`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.library import define, impl, register_fake

import tle_attn

from ..errors import InputError, InputTypeError, SpecError
from ..runtime.merge import MergePlan, plan_merge
from ..spec import DType
from . import plans
from .common import DEVICES, TAGS, on_device
from .emulation import target_of

DTYPES = {torch.bfloat16: DType.BF16, torch.float32: DType.F32}
#: a longer list is copied into a stack
MOST_TENSORS = 4

_STATES = "Tensor[] outs, Tensor[] lses, str base"
define("tle_attn::merge_states", f"({_STATES}) -> (Tensor, Tensor)", tags=TAGS)
define("tle_attn::merge_states_out", f"({_STATES}, *, Tensor(a!) out, Tensor(b!) lse) -> ()", tags=TAGS)


def merge_states(
    outs: Tensor | Sequence[Tensor], lses: Tensor | Sequence[Tensor], *, base: str, out: Tensor | None = None, lse: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over all keys from attention over parts of them, weighted by their log-sum-exp.

    Args:
        outs: bf16 or fp32, each normalised over its own keys: a stack [states, tokens, heads, head_dim], or a list of tensors [tokens, heads, head_dim].
            Up to 4 tensors are read where they are; a longer list is copied into a stack first.
        lses: float32 log-sum-exps [states, tokens, heads], or a list of [tokens, heads]; -inf where a state saw no key, whose output is not looked at.
        base: of their logarithm, "e" or "2"; that of the result too.
        out: written in place if given, bf16 or fp32; it may be one of `outs`.
        lse: likewise, float32 [tokens, heads]; it may be one of `lses`.

    Returns:
        (out, lse): `out` has the type of `outs` unless it is given.  Rows that no state has keys for are 0 with -inf.

    Raises:
        InputTypeError, InputError: the tensor and the rule it breaks; nothing was launched.
        TargetUnavailable: tensors on the CPU, and no emulation chosen (`tle_attn.ops.emulate`).
    """
    outs, lses = _as_list(outs, "outs"), _as_list(lses, "lses")
    _check_base(base)
    if out is None and lse is None:
        return torch.ops.tle_attn.merge_states(outs, lses, base)
    shape = outs[0].shape[-3:]
    out = outs[0].new_empty(shape) if out is None else out
    lse = lses[0].new_empty(shape[:2]) if lse is None else lse
    torch.ops.tle_attn.merge_states_out(outs, lses, base, out=out, lse=lse)
    return out, lse


def _as_list(states: Any, name: str) -> list[Tensor]:
    """The operators' form: a list of tensors, or of one stack of them."""
    states = [states] if isinstance(states, Tensor) else list(states) if isinstance(states, Sequence) else [None]
    if not states or not all(isinstance(state, Tensor) for state in states):
        raise InputTypeError(f"{name}: a tensor [states, ...] or a list of tensors, one at least, is wanted")
    return states


@impl("tle_attn::merge_states", DEVICES)
def _merge_states(outs: list[Tensor], lses: list[Tensor], base: str) -> tuple[Tensor, Tensor]:
    return _merge(outs, lses, base, None, None)


@impl("tle_attn::merge_states_out", DEVICES)
def _merge_states_out(outs: list[Tensor], lses: list[Tensor], base: str, *, out: Tensor, lse: Tensor) -> None:
    _merge(outs, lses, base, out, lse)


@register_fake("tle_attn::merge_states")
def _new_state(outs: list[Tensor], lses: list[Tensor], base: str) -> tuple[Tensor, Tensor]:
    shape = outs[0].shape[-3:]
    return outs[0].new_empty(shape), lses[0].new_empty(shape[:2])


@register_fake("tle_attn::merge_states_out")
def _nothing_new(outs: list[Tensor], lses: list[Tensor], base: str, *, out: Tensor, lse: Tensor) -> None:
    return None


def _merge(outs: list[Tensor], lses: list[Tensor], base: str, out: Tensor | None, lse: Tensor | None) -> tuple[Tensor, Tensor]:
    if len(outs) != len(lses):
        raise InputError(f"lses: {len(lses)} tensors for {len(outs)} in outs; every state has both")
    first = outs[0]
    stacked = len(outs) == 1 and first.dim() == 4
    _check(first, base, stacked, out)
    if not stacked and not 2 <= len(outs) <= MOST_TENSORS:
        # views of one tensor stay where they are, others are copied
        outs, lses = ([first[None]], [lses[0][None]]) if len(outs) == 1 else ([_stack(outs, "outs")], [_stack(lses, "lses")])
        stacked = True
    plan = plan_for(None if stacked else len(outs), first.dtype, first.dtype if out is None else out.dtype, base, first.shape[-1], first.device, target_of(first.device))
    with on_device(plan.device):
        merged, total = plan.run(outs[0] if stacked else outs, lses[0] if stacked else lses, out=out, lse=lse)
    assert total is not None  # the recipes' epilogue names a base
    return merged, total


def _check_base(base: Any) -> None:
    if base not in ("e", "2"):
        raise InputError(f'base: {base!r} where "e" or "2" is wanted; a log-sum-exp means nothing without its base')


def _check(first: Tensor, base: str, stacked: bool, out: Tensor | None) -> None:
    """What the choice of a kernel needs; the rest is checked by the plan's run."""
    _check_base(base)
    if not stacked and first.dim() != 3:
        raise InputError(f"outs: shape {tuple(first.shape)} where [tokens, heads, head_dim] is wanted, or one stack [states, tokens, heads, head_dim]")
    for name, tensor in (("outs", first), ("out", out)):
        if tensor is not None and tensor.dtype not in DTYPES:
            raise InputTypeError(f"{name}: dtype {str(tensor.dtype).removeprefix('torch.')} where bfloat16 or float32 is wanted")


def _stack(tensors: list[Tensor], name: str) -> Tensor:
    for i, tensor in enumerate(tensors):
        if (tensor.shape, tensor.dtype, tensor.device) != (tensors[0].shape, tensors[0].dtype, tensors[0].device):
            raise InputError(
                f"{name}[{i}]: {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, but {name}[0] is {tensors[0].dtype} {tuple(tensors[0].shape)} on {tensors[0].device}"
            )
    return torch.stack(tensors)


@cache
def plan_for(count: int | None, dtype: torch.dtype, out_dtype: torch.dtype, base: str, head_dim: int, device: torch.device, target: str) -> MergePlan:
    """The plan for states of this kind: `count` tensors, or (None) a stack of any number."""
    recipe = tle_attn.load("merge/stack" if count is None else "merge/list").set(
        {"source.dtype": DTYPES[dtype].value, "epilogue.dtype": DTYPES[out_dtype].value, "mainloop.base": base, "epilogue.lse": base}
    )
    if count is not None:
        recipe = recipe.set({"source.count": count})
    try:
        kernel = recipe.kernel(head_dim=head_dim)
    except SpecError as error:
        raise InputError(f"outs: {error.message}; allowed: {error.allowed} ({error.reason})") from None
    return plan_merge(kernel, device=device, target=target, executor=plans.executor_for(kernel, device, target))
