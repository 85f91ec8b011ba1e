"""A kernel spec as {dotted key: text}: everything that a recipe can say about it, to compare, to show and to make digests of."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from attrs import asdict, fields

from ..errors import plain

if TYPE_CHECKING:
    from .block import Block
    from .kernel import Kernel

#: where one of two specs has no such key
ABSENT = "-"


def flat_spec(kernel: Kernel) -> dict[str, str]:
    """{dotted key: value} of everything that a recipe can say about this kernel, defaults included."""
    flat = {f"problem.{k}": plain(v) for k, v in asdict(kernel.problem).items()}
    for where, block in kernel.blocks:
        flat[where] = block.NAME
        flat |= {f"{where}.{k}": plain(v) for k, v in recipe_options(block).items()}
    return flat


def recipe_options(block: Block) -> dict[str, Any]:
    """Options of a block that a recipe may set; those that exist to break a kernel in tests are left out."""
    return {a.name: getattr(block, a.name) for a in fields(type(block)) if not {"slot", "testing"} & set(a.metadata)}


def spec_digest(kernel: Kernel) -> str:
    """Digest of everything that a recipe can say about this kernel; the same in every process."""
    return hashlib.sha256(json.dumps(sorted(flat_spec(kernel).items())).encode()).hexdigest()[:16]


def tunable_options(kernel: Kernel) -> dict[str, tuple[Any, ...]]:
    """{dotted key: values} of the options that the kernel's blocks declare as tunable, the value in use first."""
    found = {}
    for where, block in kernel.blocks:
        for a in fields(type(block)):
            if "tune" in a.metadata:
                used = getattr(block, a.name)
                found[f"{where}.{a.name}"] = (used, *(value for value in a.metadata["tune"] if value != used))
    return found
