"""Register tiles: numpy arrays with the element type and the arithmetic rules of the device.

Float tiles are float32 arrays whose elements their type can represent; arithmetic is done in float32 and rounded to the type.
Integer tiles truncate in `//` and `%` and report overflow.  A float scalar is a tile of shape (); integer scalars are
`Int32` / `Int64`.  A launch without arithmetic computes one element of each float tile (`UniformTile`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from tle_attn.emu.dtypes import F32, FP8, I1, I32, I64, DType, representable
from tle_attn.emu.errors import EmulationError
from tle_attn.emu.integers import Int32, Int64, checked, overflow
from tle_attn.emu.source import at, where


class Tile:
    """A tile in the registers of a role."""

    __slots__ = ("values", "dtype")

    def __init__(self, values: np.ndarray, dtype: DType):
        self.values, self.dtype = values, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def to(self, dtype: DType) -> "Tile":
        """Converted elementwise: floats round to nearest even (e4m3 saturates), floats to integers truncate."""
        if dtype is self.dtype:
            return self
        if dtype.is_float:
            return Tile(representable(self.values.astype(np.float32), dtype), dtype)
        return Tile(self.values.astype(dtype.np), dtype)

    def reshape(self, shape: Sequence[int]) -> "Tile":
        if int(np.prod(shape)) != self.values.size:
            raise EmulationError(f"reshape of {self.shape} to {tuple(shape)} at {at(where())}")
        return Tile(self.values.reshape(shape), self.dtype)

    def permute(self, order: Sequence[int]) -> "Tile":
        return Tile(self.values.transpose(order), self.dtype)

    def __getitem__(self, index: object) -> "Tile":
        parts = index if isinstance(index, tuple) else (index,)
        if not all(part is None or part == slice(None) for part in parts):
            raise EmulationError(f"a register tile can only be indexed with None and ':', not {index!r}, at {at(where())}")
        return Tile(self.values[index], self.dtype)

    def __bool__(self) -> bool:
        if self.shape:
            raise EmulationError(f"a tile of shape {self.shape} used as a condition at {at(where())}")
        return bool(self.values)

    def __neg__(self) -> "Tile":
        return 0 - self

    def __repr__(self) -> str:
        return f"Tile({list(self.shape)}, {self.dtype})"


class UniformTile(Tile):
    """A float tile of a launch without arithmetic: element 0 stands for all of them."""

    __slots__ = ("element", "extent")

    def __init__(self, element: float, dtype: DType, shape: Sequence[int]):
        self.element, self.dtype, self.extent = np.float32(element), dtype, tuple(shape)

    @property
    def values(self) -> np.ndarray:
        return np.broadcast_to(self.element, self.extent)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extent

    def to(self, dtype: DType) -> Tile:
        element = Tile(np.asarray(self.element), self.dtype).to(dtype)
        return UniformTile(element.values, dtype, self.extent) if dtype.is_float else Tile(np.full(self.extent, element.values), dtype)

    def reshape(self, shape: Sequence[int]) -> Tile:
        return UniformTile(self.element, self.dtype, super().reshape(shape).shape)

    def permute(self, order: Sequence[int]) -> Tile:
        return UniformTile(self.element, self.dtype, [self.extent[axis] for axis in order])

    def __getitem__(self, index: object) -> Tile:
        return UniformTile(self.element, self.dtype, _shape_of_index(self, index))


def _shape_of_index(tile: Tile, index: object) -> list[int]:
    """Shape of `tile[index]` for an index of None and ':'."""
    parts, sides = index if isinstance(index, tuple) else (index,), iter(tile.shape)
    shape = [1 if part is None else next(sides) for part in parts]
    return shape + list(sides)


def _broadcast_shape(operands: tuple) -> tuple[int, ...]:
    shape: tuple[int, ...] = ()
    for x in operands:
        if isinstance(x, Tile) and x.shape != shape:
            shape = broadcast_shapes(shape, x.shape)
    return shape


def _element(x: object) -> object:
    """Element 0 of a tile, as a tile of shape ()."""
    if type(x) is UniformTile:
        return Tile(x.element, x.dtype)
    return Tile(x.values.flat[0], x.dtype) if isinstance(x, Tile) and x.shape else x


def uniformly(function: Callable[..., Tile], *operands: object) -> Tile:
    """An elementwise function of which some operand is uniform: computed on element 0."""
    shape = _broadcast_shape(operands)
    result = function(*map(_element, operands))
    if not shape:
        return result
    return UniformTile(result.values, result.dtype, shape) if result.dtype.is_float else Tile(np.full(shape, result.values), result.dtype)


def float_scalar(value: float) -> Tile:
    """An fp32 scalar."""
    return Tile(np.asarray(value, np.float32), F32)


def as_scalar(value: np.generic, dtype: DType) -> "Tile | Int64":
    """A scalar result: device integer for integer types, tile of shape () for floats and conditions."""
    if dtype.is_float or dtype is I1:
        return Tile(np.asarray(value), dtype)
    return Int64(int(value)) if dtype is I64 else Int32(int(value))


# ---------------------------------------------------------------- types of a binary operation
def _result_type(x: DType, y: DType, arithmetic: bool = True) -> DType:
    if FP8 in (x, y) and (arithmetic or x is not y):
        raise EmulationError(f"arithmetic on an fp8 tile (convert it with .to first) at {at(where())}")
    if x.is_float or y.is_float:
        if x.is_float and y.is_float:
            return x if x is y else F32
        return x if x.is_float else y
    if x is y:
        return x
    return I64 if I64 in (x, y) else I32


def broadcast_shapes(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of two tiles: equal ranks, sides equal or 1; a scalar fits everything."""
    if not x or not y:
        return x or y
    if len(x) != len(y) or any(a != b and 1 not in (a, b) for a, b in zip(x, y, strict=False)):
        raise EmulationError(f"tiles of shapes {list(x)} and {list(y)} at {at(where())}: equal ranks, and sides that are equal or 1")
    return tuple(max(a, b) for a, b in zip(x, y, strict=True))


def second_operand(tile: Tile, other: object, arithmetic: bool = True) -> tuple[np.ndarray | np.generic, DType]:
    """The second operand of an operation on `tile`, and the type of the result (fp8 can be selected, not computed with)."""
    kind = type(other)
    if isinstance(other, Tile):
        if tile.shape != other.shape:
            broadcast_shapes(tile.shape, other.shape)
        return other.values, tile.dtype if tile.dtype is other.dtype and tile.dtype is not FP8 else _result_type(tile.dtype, other.dtype, arithmetic)
    if kind is float:
        dtype = _result_type(tile.dtype, tile.dtype if tile.dtype.is_float else F32, arithmetic)
        return np.float32(other) if dtype is F32 else representable(np.float32(other), dtype), dtype  # a literal takes the tile's type
    if isinstance(other, int):
        if tile.dtype.is_float:
            dtype = _result_type(tile.dtype, tile.dtype, arithmetic)
            return np.float32(int(other)) if dtype is F32 else representable(np.float32(int(other)), dtype), dtype
        if kind is bool:
            return np.bool_(other), tile.dtype
        if isinstance(other, Int64):
            return other.dtype.np.type(int(other)), _result_type(tile.dtype, other.dtype)
        fits = -(1 << 31) <= other < 1 << 31  # a literal takes the tile's type when it fits
        return np.int64(other), (I32 if tile.dtype is I1 else tile.dtype) if fits else I64
    found = other.values  # a pending WGMMA result reports itself here; anything else has no such attribute
    raise EmulationError(f"{type(found).__name__} in an operation on a tile at {at(where())}")


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not np.all(b):
        raise EmulationError(f"integer division by zero at {at(where())}")
    return (a - np.fmod(a, b)) // b


def _modulo(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not np.all(b):
        raise EmulationError(f"integer division by zero at {at(where())}")
    return np.fmod(a, b)


def in_integers(compute: Callable, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
    """An integer operation in 64 bits, then checked against the range of `dtype`."""
    wide = compute(np.asarray(a, np.int64), np.asarray(b, np.int64))
    if dtype is I64:
        if compute in (np.multiply, np.add, np.subtract):
            estimate = np.abs(compute(np.asarray(a, np.float64), np.asarray(b, np.float64)))
            if estimate.size and estimate.max() >= 2.0**63:
                raise overflow(64, int(estimate.max()))
        return wide
    if wide.size:
        low, high = wide.min(), wide.max()
        if low < dtype.low or high > dtype.high:
            raise overflow(dtype.primitive_bitwidth, int(low if low < dtype.low else high))
    return wide.astype(dtype.np)


def _define_arithmetic(name: str, floats: Callable | None, integers: Callable | None) -> None:
    """`floats` or `integers` is None where the device has no such operation on that kind."""

    def compute(x: Tile, y: object, swapped: bool) -> Tile:
        if type(x) is UniformTile or type(y) is UniformTile:
            return uniformly(lambda a, b: compute(a, b, swapped), x, y)
        b, dtype = second_operand(x, y)
        a = x.values
        if swapped:
            a, b = b, a
        if dtype.is_float:
            if floats is None:
                raise EmulationError(f"{name} on float tiles at {at(where())}")
            result = floats(a, b) if dtype is F32 else representable(floats(a, b), dtype)
            return Tile(result if result.dtype == np.float32 else result.astype(np.float32), dtype)
        if dtype is I1:
            if name in ("and", "or", "xor"):
                return Tile(integers(a, b), I1)
            dtype = I32
        if name == "truediv":
            return Tile((np.asarray(a, np.float32) / np.asarray(b, np.float32)).astype(np.float32), F32)
        return Tile(in_integers(integers, a, b, dtype), dtype)

    setattr(Tile, f"__{name}__", lambda self, other: compute(self, other, False))
    setattr(Tile, f"__r{name}__", lambda self, other: compute(self, other, True))


def _define_comparison(name: str, function: Callable) -> None:
    def compare(x: Tile, y: object) -> Tile:
        if type(x) is UniformTile or type(y) is UniformTile:
            return uniformly(compare, x, y)
        return Tile(np.asarray(function(x.values, second_operand(x, y)[0])), I1)

    setattr(Tile, f"__{name}__", compare)


for _name, _floats, _integers in (
    ("add", np.add, np.add),
    ("sub", np.subtract, np.subtract),
    ("mul", np.multiply, np.multiply),
    ("truediv", np.divide, np.divide),
    ("floordiv", None, _divide),
    ("mod", None, _modulo),
    ("and", None, np.bitwise_and),
    ("or", None, np.bitwise_or),
    ("xor", None, np.bitwise_xor),
    ("lshift", None, np.left_shift),
    ("rshift", None, np.right_shift),
):
    _define_arithmetic(_name, _floats, _integers)
for _name, _function in {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}.items():
    _define_comparison(_name, _function)
Tile.__hash__ = None


# ---------------------------------------------------------------- device integers meet floats
def _integer_to(self: Int64, dtype: DType) -> "Tile | Int64":
    if dtype.is_float:
        return Tile(representable(np.asarray(int(self), np.float32), dtype), dtype)
    return checked(int(self), Int64 if dtype is I64 else Int32)


def _with_floats(name: str) -> None:
    """device integer <op> float literal is an fp32 scalar (float literal <op> integer stays a literal: Python decides that)."""
    integers, floats = Int64.__dict__.get(name), getattr(Tile, name)

    def operator(self: Int64, other: object):
        if integers is None or type(other) is float:
            return floats(float_scalar(int(self)), other)
        return integers(self, other)

    setattr(Int64, name, operator)


for _name in ("__add__", "__sub__", "__mul__", "__truediv__", "__rtruediv__"):
    _with_floats(_name)
Int64.to = _integer_to
