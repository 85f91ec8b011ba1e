"""Reading `--set key=value`, and the recipe that an argument names."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from ..errors import SpecError

if TYPE_CHECKING:
    from ..recipe import Recipe

_BARE = re.compile(r"[A-Za-z_][\w./-]*")


def read_setting(text: str, option: str = "--set") -> tuple[str, Any]:
    """("ring.stages", 2) of "ring.stages=2": the value is TOML, and a bare word is a string.

    Raises:
        SpecError: the text has no "=", or the value is no TOML.
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key or not value:
        raise SpecError(f"{option} {text!r} sets nothing", allowed=f"KEY=VALUE, for example {option} ring.stages=2")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        if _BARE.fullmatch(value):
            return key, value
        allowed = 'a number, true, false, "text", a bare word, [a, list]'
        raise SpecError(f"{option} {text!r}: the value is no TOML", key=key, value=value, allowed=allowed) from None


def read_axis(text: str) -> tuple[str, list[Any]]:
    """("problem.page", [64, 16]) of "problem.page=[64, 16]"."""
    key, values = read_setting(text, "--axis")
    if not isinstance(values, list) or not values:
        raise SpecError(f"--axis {text!r} names no values", key=key, value=values, allowed="KEY=[VALUES], for example --axis problem.page=[64, 16]")
    return key, values


def read_recipe(name: str, settings: list[str], tuned: str = "") -> Recipe:
    """The recipe that `name` (of the library, a .toml file or an export), `--set` options and `--tuned` mean."""
    from ..recipe import load

    return load(name, tuned=tuned == "this" or tuned).set(dict(read_setting(s) for s in settings))
