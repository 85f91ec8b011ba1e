"""What the operators of hpc-ops share: quantisation types, the error, and errors in their words."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from ..errors import InputError, InputTypeError

P = ParamSpec("P")
R = TypeVar("R")


class QuantType(Enum):
    """What shares a scale; the operators know the first two."""

    QPERTOKEN_PERHEAD_KPERTOKEN_PERHEAD_VPERHEAD = 0
    QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR = 1
    QPERTENSOR_KPERTENSOR_VPERTENSOR = 2
    QPERTOKEN_PERHEAD_KPERTOKEN_PERHEAD_VPERHEAD_QKHADAMARD = 3


class HpcOpsError(InputError, RuntimeError):
    """An argument breaks the contract of the operator; a RuntimeError, as there."""


#: what this library's messages call arguments of every operator
_THEIRS = {
    "k_cache": "kcache", "v_cache": "vcache", "q_scale": "qscale", "k_scale": "kscale", "v_scale": "vscale", "out:": "output:", "query_heads": "num_head_q",
    "kv_heads": "num_head_kv",
}  # fmt: skip


def in_their_words(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Errors of the function name the arguments as it does; `names`: those of its own, by this library's."""
    theirs = _THEIRS | names
    ours = re.compile("|".join(rf"\b{name}" + ("" if name.endswith(":") else r"\b") for name in theirs))

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            except (InputError, InputTypeError) as error:
                raise HpcOpsError(ours.sub(lambda found: theirs[found[0]], str(error))) from error

        return call

    return decorate


def quant_number(quant_type: QuantType | int) -> int:
    """0 or 1."""
    number = quant_type.value if isinstance(quant_type, Enum) else quant_type
    if number not in (0, 1):
        raise HpcOpsError(f"quant_type: {quant_type} where 0 (K per token and head, V per head) or 1 (K and V per tensor) is supported")
    return number


def check_value_scale(vscale: Tensor, number: int) -> None:
    """One of V for all or for each head: what has more dimensions would be scales of every token, which neither quant type has."""
    if vscale.dim() > 1:
        raise HpcOpsError(f"vscale: shape {tuple(vscale.shape)} where quant_type {number} wants " + ("[num_head_kv]", "[1]")[number])


def e4m3(tensor: Tensor) -> Tensor:
    """Bytes of any type as e4m3."""
    return tensor.view(torch.float8_e4m3fn) if tensor.dtype in (torch.uint8, torch.int8) else tensor
