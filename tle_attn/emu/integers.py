"""Integer scalars as the device computes them: 32 or 64 bits, checked, with truncating `//` and `%`."""

from collections.abc import Callable, Iterator

from tle_attn.emu.dtypes import I32, I64
from tle_attn.emu.errors import EmulationError, OutOfBounds
from tle_attn.emu.source import at, where


class Int64(int):
    """A 64-bit device integer."""

    __slots__ = ()
    bits = 64
    dtype = I64
    shape = ()


class Int32(Int64):
    """A 32-bit device integer; a result that does not fit is an error, not a wrap."""

    __slots__ = ()
    bits = 32
    dtype = I32


def overflow(bits: int, value: int) -> OutOfBounds:
    """The report of an integer that does not fit."""
    hint = "\n  widen an operand with as_int64 before the product" if bits == 32 else ""
    return OutOfBounds(f"{bits}-bit integer overflow: {value} at {at(where())}{hint}")


def checked(value: int, kind: type[Int64] = Int32) -> Int64:
    """`value` as a device integer of `kind`."""
    half = 1 << (kind.bits - 1)
    if not -half <= value < half:
        raise overflow(kind.bits, int(value))
    return kind(value)


def _is_32_bit(value: int) -> bool:
    if isinstance(value, Int64):
        return type(value) is Int32
    return -(1 << 31) <= value < 1 << 31  # a literal takes the smallest type that holds it


def _quotient(a: int, b: int) -> int:
    if b == 0:
        raise EmulationError(f"integer division by zero at {at(where())}")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int:
    return a - _quotient(a, b) * b


def _define(name: str, compute: Callable[[int, int], int], swapped: bool) -> None:
    def operator(self: Int64, other: object):
        if not isinstance(other, int):
            return NotImplemented
        kind = Int32 if type(self) is Int32 and _is_32_bit(other) else Int64
        a, b = (int(other), int(self)) if swapped else (int(self), int(other))
        return checked(compute(a, b), kind)

    operator.__name__ = name
    setattr(Int64, name, operator)


for _name, _compute in {
    "add": int.__add__,
    "sub": int.__sub__,
    "mul": int.__mul__,
    "floordiv": _quotient,
    "mod": _remainder,
    "and": int.__and__,
    "or": int.__or__,
    "xor": int.__xor__,
    "lshift": int.__lshift__,
    "rshift": int.__rshift__,
}.items():
    _define(f"__{_name}__", _compute, swapped=False)
    _define(f"__r{_name}__", _compute, swapped=True)


def _negate(self: Int64) -> Int64:
    return checked(-int(self), type(self))


Int64.__neg__ = _negate


def device_range(*bounds: int) -> Iterator[Int32]:
    """`range` of the kernel text: the loop index is a 32-bit device integer."""
    if not all(isinstance(bound, int) for bound in bounds):
        raise EmulationError(f"range takes integers, not {[type(bound).__name__ for bound in bounds]}, at {at(where())}")
    return map(Int32, range(*bounds))
