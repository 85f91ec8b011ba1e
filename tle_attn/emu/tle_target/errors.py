"""What the emulated FlagTree refuses."""

from __future__ import annotations

from tle_attn.emu.errors import EmulationError
from tle_attn.emu.source import at, where


class TLEContractError(EmulationError):
    """A call that FlagTree rejects, or that breaks a rule of its documentation."""


class TLENotEmulated(EmulationError):
    """A call that FlagTree documents and this emulation does not cover."""


class UnknownTLEName(TLEContractError, AttributeError):
    """A name that the documentation does not have."""


def require(holds: object, rule: str) -> None:
    """Raise TLEContractError with `rule` and the running line of the kernel text unless `holds`."""
    if not holds:
        raise TLEContractError(f"{rule}, at {at(where())}")


def not_emulated(what: str) -> TLENotEmulated:
    """The error for a documented call that is not covered."""
    return TLENotEmulated(f"{what} is legal TLE, but not emulated, at {at(where())}")


def is_static(value: object) -> bool:
    """Is `value` a compile-time integer?  Device integers are subclasses of int, and bool is not one of them."""
    return type(value) is int
