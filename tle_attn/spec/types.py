"""Element types, places and the typed values (ports) that pass between blocks."""

from __future__ import annotations

import enum

from attrs import field, frozen
from attrs.validators import instance_of

from ..errors import SpecError


class DType(enum.Enum):
    """Element types of the dialect; the value is the name used in recipes."""

    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"
    FP8 = "fp8"  # e4m3 (torch.float8_e4m3fn)
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"

    @property
    def nbytes(self) -> int:
        return {"bf16": 2, "f16": 2, "f32": 4, "fp8": 1, "i32": 4, "i64": 8, "u8": 1}[self.value]

    @property
    def text(self) -> str:
        """Its name in kernel text."""
        return self.name

    @property
    def torch_name(self) -> str:
        return {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "fp8": "float8_e4m3fn", "i32": "int32", "i64": "int64", "u8": "uint8"}[self.value]


class Place(enum.Enum):
    SHARED = "shared"
    REGISTER = "register"


@frozen
class Port:
    """A typed value between blocks.

    Attributes:
        name: parameter or result name in the device function.
        dtype: element type.
        axes: meaning of each dimension: "key", "query", "dim", "page", ...
        shape: extent of each dimension.
        place: where it lives.
        layout: "mma" (accumulator of a wgmma), "swizzled" (TMA/wgmma tile), "plain" or "any".
        major: the contiguous axis of a shared or global tile, None where it does not matter.
    """

    name: str
    dtype: DType
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    place: Place = Place.REGISTER
    layout: str = "any"
    major: str | None = None

    def mismatch(self, other: Port) -> str | None:
        """Why `other` cannot be passed where `self` is wanted, or None."""
        for what in ("dtype", "place", "axes", "shape"):
            if getattr(self, what) != getattr(other, what):
                return f"{what} {_show(getattr(other, what))} where {_show(getattr(self, what))} is wanted"
        if "any" not in (self.layout, other.layout) and self.layout != other.layout:
            return f"layout {other.layout} where {self.layout} is wanted"
        if self.major and other.major and self.major != other.major:
            return f"{other.major}-major where {self.major}-major is wanted"
        return None

    def __str__(self) -> str:
        dims = ", ".join(f"{a} {n}" for a, n in zip(self.axes, self.shape))
        extra = "" if self.layout == "any" else f" {self.layout}"
        return f"{self.name}: {self.dtype.value}[{dims}] {self.place.value}{extra}"


def _show(value: object) -> str:
    return value.value if isinstance(value, enum.Enum) else str(value)


@frozen
class Function:
    """A device function that a block provides or a mainloop calls: its name and typed ports."""

    name: str
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()


@frozen
class Constant:
    """A spec value that kernel text uses by name: `NAME = constexpr(value)` at the top of the generated module.

    Attributes:
        value: the value.
        doc: its meaning, a comment in the module.
        same_as: the constant that it is written as where both have one value, so that a distinction that a kernel does not make leaves no trace in its text.
    """

    value: int | float | bool | DType
    doc: str = ""
    same_as: str | None = None


#: extents that a plan knows, by the names that shapes of arguments use
SIZES = ("batch", "query_heads", "kv_heads", "query_tokens")


def _known_sizes(instance: object, attribute: object, shape: tuple[str | int | None, ...] | None) -> None:
    for extent in shape or ():
        if isinstance(extent, str) and extent not in SIZES:
            raise SpecError(f"no extent is called {extent!r}", key="shape", value=shape, allowed=[*SIZES, "a number", "None for any"])


@frozen
class Argument:
    """A kernel argument that a block brings; it is in the kernel only if reachable text uses it.

    Attributes:
        name: its name in kernel text (`args.name`).
        type: "*bf16", "*i32", "i32", "i64", "f32", ...; or a `BoxDescriptor` for a TMA descriptor.
        doc: meaning, shape, units.
        divisible: a promise checked before launch: the value is a multiple of this (lets loads be vectorised).
        shape: extents of a tensor that a user gives, checked before launch: names of SIZES, numbers, or None for any extent; no shape: any.
        extent_of: (tensor argument, dimension): the plan passes this extent; a user does not give it.
    """

    name: str
    type: str | BoxDescriptor
    doc: str
    divisible: int = field(default=1, validator=instance_of(int))
    shape: tuple[str | int | None, ...] | None = field(default=None, validator=_known_sizes)
    extent_of: tuple[str, int] | None = None


@frozen
class BoxDescriptor:
    """A TMA descriptor argument: element type and box, outermost dimension first."""

    dtype: DType
    block_shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"tensor descriptor {self.dtype.value}{list(self.block_shape)}"
