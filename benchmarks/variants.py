"""Variants of recipes that are measured side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen

import tle_attn
from tle_attn.cli.options import read_setting
from tle_attn.spec import Kernel


@frozen
class Variant:
    """A recipe with options replaced."""

    name: str
    recipe: str
    options: tuple[tuple[str, Any], ...] = ()

    def kernel(self, **problem: Any) -> Kernel:
        """The checked kernel; keyword arguments set keys of [problem]."""
        return tle_attn.load(self.recipe).set(dict(self.options)).kernel(**problem)


def parse_variant(text: str, recipe: str, shared: Iterable[tuple[str, Any]] = ()) -> Variant:
    """"deep:ring.stages=4,reduce.poll_above=0" to a variant; the key `recipe` chooses another recipe; `shared` options come first."""
    name, separator, options = text.partition(":")
    if not name or (separator and not options):
        raise ValueError(f"variant {text!r}: NAME or NAME:KEY=VALUE,KEY=VALUE is wanted")
    merged = dict(shared) | dict(read_setting(part) for part in options.split(",") if part)
    recipe = merged.pop("recipe", recipe)
    return Variant(name, recipe, tuple(merged.items()))
