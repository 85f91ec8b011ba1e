"""Errors of the composer: one class per kind of rule, each with a short message that says what, where, what is allowed and why."""

from __future__ import annotations

import enum
import json
from typing import Any


def written(value: Any) -> str:
    """A spec value as a recipe writes it, in TOML; None, which TOML has no word for, is "not set"."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{k} = {written(v)}' for k, v in value.items())} }}"
    return "not set" if value is None else str(value)


def plain(value: Any) -> str:
    """The same, words without quotes: for lists and tables."""
    if isinstance(value, enum.Enum):
        value = value.value
    return value if isinstance(value, str) else written(value)


class TleAttnError(Exception):
    """Base of every error that tle_attn raises on purpose."""


class TargetUnavailable(TleAttnError):
    """The asked-for target cannot run here; there is no silent fallback."""


class SpecError(TleAttnError, ValueError):
    """A spec or recipe breaks a rule.

    Attributes:
        message: what is wrong.
        key: the option, dotted from the top of the recipe (``reduce.poll_above``), or None.
        value: the offending value, or ``MISSING``.
        allowed: what would be accepted, in words, or None.
        reason: why, or None.
        file: the recipe file, or None for a spec composed in Python.
    """

    MISSING = object()

    def __init__(self, message: str, *, key: str | None = None, value: Any = MISSING, allowed: Any = None, reason: str | None = None, file: str | None = None):
        self.message, self.key, self.value, self.allowed, self.reason, self.file = message, key, value, allowed, reason, file
        super().__init__(message)

    def located(self, *, file: str | None = None, prefix: str | None = None) -> SpecError:
        """The same error with the recipe file and the key's prefix filled in."""
        self.file = self.file or file
        if prefix:
            self.key = f"{prefix}.{self.key}" if self.key else prefix
        return self

    def __str__(self) -> str:
        where = ": ".join(x for x in (self.file, self.key) if x)
        parts = [f"{where}: {self.message}" if where else self.message]
        if self.value is not SpecError.MISSING:
            parts.append(f"  value    {written(self.value)}")
        if self.allowed is not None:
            allowed = self.allowed if isinstance(self.allowed, str) else ", ".join(map(plain, self.allowed))
            parts.append(f"  allowed  {allowed}")
        if self.reason:
            parts.append(f"  because  {self.reason}")
        return "\n".join(parts)


class PortError(SpecError):
    """Two blocks do not fit together."""


class ResourceError(SpecError):
    """The composed kernel exceeds what an sm_90a multiprocessor has; the message holds the table that adds up."""


class ProtocolError(SpecError):
    """The barrier protocol of the composed kernel is wrong for some tile count."""


class NumericError(SpecError):
    """A numeric contract (a range of a quantised value) does not hold."""


class LinkError(TleAttnError):
    """Block text does not fit together: an undefined name, two definitions of one function, an unused block."""


class LintError(TleAttnError):
    """Block text holds something that the JIT refuses or miscompiles."""


class ExportError(TleAttnError):
    """A folder of exported kernels is none, is damaged, or does not hold what is asked of it."""


class InputError(TleAttnError, ValueError):
    """A tensor given to ``plan`` or ``run`` breaks the kernel's contract (value, shape, stride, device)."""


class InputTypeError(TleAttnError, TypeError):
    """A tensor given to ``plan`` or ``run`` has the wrong type."""


class CacheWarning(UserWarning):
    """The compile cache could not be used as configured, and what was done instead."""


class TunedWarning(UserWarning):
    """Tuned options were asked for and are not used, and why."""
