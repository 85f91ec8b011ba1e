"""How two kernels differ: as specs, option by option, and as generated code, line by line."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from attrs import frozen

from ..errors import plain
from ..spec.flat import ABSENT, flat_spec

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..spec import Kernel

@frozen
class Difference:
    """A key in which two specs differ, and both values as text."""

    key: str
    a: str
    b: str


def differences(a: Recipe, b: Recipe) -> list[Difference]:
    """Keys in which the default points of two recipes, or their variant axes, differ."""
    left, right = (flat_spec(r.kernel()) | {f"axes.{k}": ", ".join(map(plain, v)) for k, v in r.axes.items()} for r in (a, b))
    keys = list(dict.fromkeys([*left, *right]))
    return [Difference(k, left.get(k, ABSENT), right.get(k, ABSENT)) for k in keys if left.get(k) != right.get(k)]


def code_diff(a: Kernel, b: Kernel, target: str) -> list[str]:
    """Unified diff of the modules generated for two kernels, the lines that differ by the kernels' names alone included."""
    from ..codegen import generate

    one, two = (generate(k, target).text.splitlines() for k in (a, b))
    return list(difflib.unified_diff(one, two, f"{a.name} ({target})", f"{b.name} ({target})", lineterm=""))
