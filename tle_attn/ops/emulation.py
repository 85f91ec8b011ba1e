"""Where operators run: on the GPU that holds their tensors, or in emulation if that was chosen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..errors import TargetUnavailable

VARIABLE = "TLE_ATTN_EMULATE"
_chosen: ContextVar[bool] = ContextVar("tle_attn_emulate", default=False)


@contextmanager
def emulate() -> Iterator[None]:
    """Run operators on CPU tensors in emulation, which is slow and exact about the asynchronous machine.  `TLE_ATTN_EMULATE=1` does so for a process."""
    token = _chosen.set(True)
    try:
        yield
    finally:
        _chosen.reset(token)


def emulating() -> bool:
    """Whether the emulation was chosen."""
    return _chosen.get() or os.environ.get(VARIABLE, "0") not in ("", "0")


def target_of(device: Any) -> str:
    """The target for tensors on `device`.

    Raises:
        TargetUnavailable: nothing runs there; the emulation is never a fallback.
    """
    if device.type == "cuda":
        return "gluon"
    if device.type == "cpu" and emulating():
        return "cpu"
    raise TargetUnavailable(
        f"operators run on a Hopper GPU, and these tensors are on {device}; to emulate them on the CPU, say so: tle_attn.compat.emulate(), or {VARIABLE}=1"
    )
