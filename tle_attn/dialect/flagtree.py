"""Is FlagTree here, with the calls that the ``tle`` target needs?

FlagTree is a Triton distribution: it installs as ``triton``.  It is recognised by its calls and not by a version number, as
FlagTree's own users do.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from tle_attn.errors import TargetUnavailable

#: Triton that FlagTree's TLE is built on
MIN_TRITON = (3, 6)

#: names of ``triton.experimental.tle.language`` that generated modules use
NAMES = (
    *("device_mesh", "distributed_barrier", "remote", "shard_id"),
    *("gpu.PENDING", "gpu.READY", "gpu.alloc", "gpu.alloc_barrier", "gpu.alloc_barriers", "gpu.barrier_arrive", "gpu.barrier_wait"),
    *("gpu.buffered_tensor", "gpu.buffered_tensor.slot", "gpu.buffered_tensor_type", "gpu.copy", "gpu.local_ptr", "gpu.nv_mma_shared_layout"),
    *("gpu.smem", "gpu.warp_specialize", "gpu.wgmma", "gpu.wgmma_wait"),
)

#: parameters of those names that older versions lack
PARAMETERS = (("gpu.alloc", "alias"), ("gpu.copy", "barrier"))

HOW = "install FlagTree >= 0.7 (pip install flagtree, from the package index that its install guide names); the gluon target runs on stock Triton"


def missing() -> tuple[str, ...]:
    """What the installed Triton lacks for the ``tle`` target; empty when it is FlagTree >= 0.7."""
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return ("triton",)
    if _version(triton.__version__) < MIN_TRITON:
        return (f"Triton >= {MIN_TRITON[0]}.{MIN_TRITON[1]} (found {triton.__version__})",)
    try:
        tle = importlib.import_module("triton.experimental.tle.language")
    except ImportError:
        return (f"triton.experimental.tle (stock Triton {triton.__version__} has no TLE)",)
    lacking = [f"tle.{name}" for name in NAMES if _get(tle, name) is None]
    for name, parameter in PARAMETERS:
        function = _get(tle, name)
        if function is not None and parameter not in inspect.signature(function).parameters:
            lacking.append(f"tle.{name}({parameter}=)")
    if not hasattr(triton.language, "float8e4nv"):
        lacking.append("tl.float8e4nv")
    return tuple(lacking)


def require_flagtree() -> None:
    """Raise TargetUnavailable with one line, what is missing and how to get it, unless FlagTree >= 0.7 is installed."""
    lacking = missing()
    if lacking:
        raise TargetUnavailable(f"the tle target cannot run here: no {', '.join(lacking)}; {HOW}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _get(root: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        root = getattr(root, part, None)
    return root
