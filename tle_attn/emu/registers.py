"""The tile operations of the dialect: creation, shape, elementwise functions, reductions."""

from collections.abc import Callable

import numpy as np

from tle_attn.emu.dtypes import BF16, F16, F32, FP8, I1, I32, I64, DType, representable
from tle_attn.emu.errors import EmulationError
from tle_attn.emu.integers import Int64, checked
from tle_attn.emu.machine import running
from tle_attn.emu.source import at
from tle_attn.emu.source import where as here
from tle_attn.emu.tiles import Tile, UniformTile, as_scalar, broadcast_shapes, float_scalar, in_integers, second_operand, uniformly


def power_of_two(what: str, *sizes: int) -> None:
    """Register tiles have power-of-two sides on the device."""
    for size in sizes:
        if size <= 0 or size & (size - 1):
            raise EmulationError(f"{what} with a side of {size}, which is no power of two, at {at(here())}")


def _arange(n: int) -> Tile:
    return Tile(np.arange(n, dtype=np.int32), I32)


def _fill(shape: tuple[int, ...], value: object) -> Tile:
    element = value.values if isinstance(value, Tile) else value
    return Tile(np.full(shape, element, np.float32), F32) if running().arithmetic else UniformTile(element, F32, shape)


def mma_zeros(m: int, n: int, dtype: DType) -> Tile:
    power_of_two("mma_zeros", m, n)
    if m % 64 or n % 8:
        raise EmulationError(f"mma_zeros({m}, {n}): an accumulator has 64 rows a warpgroup and columns in eights, at {at(here())}")
    return _fill((m, n), 0.0)


def full_rows(tile: Tile, value: float) -> Tile:
    return _fill((tile.shape[0],), value)


def full_cols(tile: Tile, value: float) -> Tile:
    return _fill((tile.shape[1],), value)


def rows(tile: Tile) -> Tile:
    return _arange(tile.shape[0])


def cols(tile: Tile) -> Tile:
    return _arange(tile.shape[1])


def cols_from(tile: Tile, start: int) -> Tile:
    return cols(tile) + start


def distances(tile: Tile, start: int) -> Tile:
    return (rows(tile)[:, None] + start - cols(tile)[None, :]).to(F32)


def tile_index(m: int, n: int, vec: int) -> tuple[Tile, Tile]:
    power_of_two("tile_index", m, n, vec)
    if n % vec:
        raise EmulationError(f"tile_index({m}, {n}, {vec}): a row of {n} is no multiple of {vec} columns a thread, at {at(here())}")
    return _arange(m), _arange(n)


def tile_zeros(m: int, n: int, vec: int) -> Tile:
    tile_index(m, n, vec)
    return _fill((m, n), 0.0)


def vec_index(n: int) -> Tile:
    power_of_two("vec_index", n)
    return _arange(n)


def _same_length(vector: Tile, size: int, what: str) -> Tile:
    if vector.shape != (size,):
        raise EmulationError(f"{what}: a vector of shape {vector.shape} for {size} elements at {at(here())}")
    return vector


def like_rows(vector: Tile, tile: Tile) -> Tile:
    return _same_length(vector, tile.shape[0], "like_rows")


def like_cols(vector: Tile, tile: Tile) -> Tile:
    return _same_length(vector, tile.shape[1], "like_cols")


def move_rows(vector: Tile, tile: Tile) -> Tile:
    return _same_length(vector, tile.shape[0], "move_rows")


def move_cols(vector: Tile, tile: Tile) -> Tile:
    return _same_length(vector, tile.shape[1], "move_cols")


def register_operand(tile: Tile, acc: Tile) -> Tile:
    if tile.dtype not in (BF16, F16, FP8):
        raise EmulationError(f"register_operand of a {tile.dtype} tile: a wgmma operand is bf16, f16 or fp8, at {at(here())}")
    if tile.shape[0] != acc.shape[0]:
        raise EmulationError(f"register_operand: {tile.shape[0]} rows for an accumulator of {acc.shape[0]} at {at(here())}")
    return tile


def uniform(x: int) -> int:
    """A hint: changes no value."""
    if not isinstance(x, int):
        raise EmulationError(f"uniform of {x!r}: an int32 scalar, at {at(here())}")
    return x


def wide_rows(tile: Tile) -> Tile:
    if len(tile.shape) != 2 or tile.shape[0] != 64 or tile.shape[1] % 16:
        raise EmulationError(f"wide_rows of a tile of shape {tile.shape}: 64 rows, columns in sixteens, at {at(here())}")
    return tile


def pin(vector: Tile) -> Tile:
    """Order inside a thread: changes no value."""
    if vector.dtype is not F32:
        raise EmulationError(f"pin of a {vector.dtype} vector: fp32 is expected, at {at(here())}")
    if running().arithmetic and (vector.values < 0).any():
        raise EmulationError(f"pin of negative values, which would be stored on the device, at {at(here())}")
    return vector


def trans(tile: Tile) -> Tile:
    if len(tile.shape) != 2:
        raise EmulationError(f"trans of a tile of shape {tile.shape} at {at(here())}")
    return tile.permute((1, 0))


def _lifted(x: object) -> Tile:
    """A scalar operand as a tile of shape ()."""
    if isinstance(x, Tile):
        return x
    if isinstance(x, float):
        return float_scalar(x)
    if isinstance(x, bool):
        return Tile(np.asarray(x), I1)
    if isinstance(x, int):
        dtype = x.dtype if isinstance(x, Int64) else I32 if -(1 << 31) <= x < 1 << 31 else I64
        return Tile(np.asarray(int(x), dtype.np), dtype)
    x.values  # a pending WGMMA result reports itself
    raise EmulationError(f"{type(x).__name__} where a tile or number is expected at {at(here())}")


def _elementwise(function: Callable, x: object, y: object) -> "Tile | Int64":
    if type(x) is UniformTile or type(y) is UniformTile:
        return uniformly(lambda a, b: _elementwise(function, a, b), x, y)
    if not isinstance(x, Tile):
        if not isinstance(y, Tile):
            if isinstance(x, int) and isinstance(y, int) and not isinstance(x, Int64) and not isinstance(y, Int64):
                return int(function(x, y))  # compile-time constants stay constants
            x = _lifted(x)
        else:
            x, y = y, x
    b, dtype = second_operand(x, y)
    values = function(x.values, b)
    return Tile(values, dtype) if np.shape(values) else as_scalar(values, dtype)


def maximum(x: object, y: object) -> "Tile | Int64":
    return _elementwise(np.fmax, x, y)  # the device returns the number when one side is NaN


def minimum(x: object, y: object) -> "Tile | Int64":
    return _elementwise(np.fmin, x, y)


def where(condition: object, x: object, y: object) -> "Tile | Int64":
    """Elementwise choice; the element type is that of an arithmetic operation on x and y."""
    if not isinstance(condition, (Tile, bool)):
        raise EmulationError(f"where on a condition of type {type(condition).__name__} at {at(here())}")
    if type(x) is UniformTile or type(y) is UniformTile:
        return uniformly(where, condition, x, y)
    if isinstance(x, Tile):
        a, (b, dtype) = x.values, second_operand(x, y, arithmetic=False)
    else:
        y = _lifted(y)
        b, (a, dtype) = y.values, second_operand(y, x, arithmetic=False)
    if isinstance(condition, Tile) and condition.shape:
        broadcast_shapes(condition.shape, broadcast_shapes(np.shape(a), np.shape(b)))
    values = np.where(condition.values if isinstance(condition, Tile) else condition, a, b)
    if values.dtype != (np.float32 if dtype.is_float else dtype.np):
        values = values.astype(np.float32 if dtype.is_float else dtype.np)
    return Tile(values, dtype) if values.shape else as_scalar(values, dtype)


def absolute(x: object) -> "Tile | Int64":
    return maximum(x, 0 - x)  # type: ignore[operator]


def where_le(a: object, b: object, x: Tile, y: float) -> Tile:
    if x.dtype is not F32:
        raise EmulationError(f"where_le of a {x.dtype} tile: fp32 is expected, at {at(here())}")
    return where(a <= b, x, y)


def _float_function(function: Callable, x: object, name: str) -> Tile:
    if type(x) is UniformTile:
        return uniformly(lambda element: _float_function(function, element, name), x)
    tile = _lifted(x)
    if tile.dtype is not F32:
        raise EmulationError(f"{name} of a {tile.dtype} value: the device computes it in fp32, at {at(here())}")
    return Tile(np.asarray(function(tile.values)), F32)


def exp2(x: Tile) -> Tile:
    return _float_function(np.exp2, x, "exp2")


def log2(x: Tile) -> Tile:
    return _float_function(np.log2, x, "log2")


def lg2(x: Tile) -> Tile:
    return _float_function(lambda values: np.log2(np.where(np.abs(values) < 2.0**-126, 0.0, values)), x, "lg2")


def fdiv(x: object, y: object) -> Tile:
    return _lifted(x) / y


def rcp(x: object) -> Tile:
    tile = _lifted(x)
    if (tile.values < 2.0**-126).any():
        raise EmulationError(f"rcp of a value below 2**-126, which the device takes for 0, at {at(here())}")
    return _float_function(lambda values: 1.0 / values, tile, "rcp")


def cdiv(x: int, y: int) -> int:
    return (x + (y - 1)) // y


def as_int64(x: object) -> "Tile | Int64":
    """A 64-bit integer scalar or tile."""
    if isinstance(x, Tile):
        if x.dtype.is_float:
            raise EmulationError(f"as_int64 of a {x.dtype} tile at {at(here())}")
        return x.to(I64)
    return checked(int(x), Int64)


def _axis(tile: Tile, axis: int) -> None:
    if not 0 <= axis < len(tile.shape):
        raise EmulationError(f"reduction of a tile of shape {tile.shape} along axis {axis} at {at(here())}")


def _reduced(tile: UniformTile, axis: int, element: np.float32) -> Tile:
    shape = tile.shape[:axis] + tile.shape[axis + 1 :]
    return UniformTile(element, tile.dtype, shape) if shape else Tile(np.asarray(element), tile.dtype)


def reduce_max(tile: Tile, axis: int) -> "Tile | Int64":
    _axis(tile, axis)
    if type(tile) is UniformTile:
        return _reduced(tile, axis, tile.element)
    values = np.fmax.reduce(tile.values, axis) if tile.dtype.is_float else tile.values.max(axis)
    return Tile(values, tile.dtype) if values.shape else as_scalar(values, tile.dtype)


def reduce_sum(tile: Tile, axis: int) -> "Tile | Int64":
    _axis(tile, axis)
    if type(tile) is UniformTile:
        return _reduced(tile, axis, tile.element * np.float32(tile.shape[axis]))
    if tile.dtype.is_float:
        values = representable(tile.values.sum(axis, dtype=np.float32), tile.dtype)
        dtype = tile.dtype
    else:
        dtype = I64 if tile.dtype is I64 else I32
        values = in_integers(np.add, tile.values.sum(axis, dtype=np.int64), np.int64(0), dtype)
    return Tile(values, dtype) if values.shape else as_scalar(values, dtype)


def cumsum(vector: Tile) -> Tile:
    if vector.dtype is not I32 or len(vector.shape) != 1:
        raise EmulationError(f"cumsum of a {vector.dtype} tile of shape {vector.shape}: an int32 vector is expected, at {at(here())}")
    return Tile(in_integers(np.add, np.cumsum(vector.values, dtype=np.int64), np.int64(0), I32), I32)


def any_greater(tile: Tile, limit: float) -> Int64:
    """1 if an element of the tile is above `limit`: for semantic definitions of microkernels, not an operation of the dialect."""
    return checked(int((tile.values > limit).any()))


def joined(a: Tile, b: Tile) -> Tile:
    """Two tiles along a new last axis: for semantic definitions of microkernels, not an operation of the dialect."""
    shape = (*a.shape, 2)
    return UniformTile(a.element, a.dtype, shape) if type(a) is UniformTile else Tile(np.stack([a.values, b.values], -1), a.dtype)
