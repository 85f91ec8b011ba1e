"""Global memory: torch tensors accessed in place through pointers, with bounds and order checked per element."""

import ctypes

import numpy as np

from tle_attn.emu.dtypes import BY_NAME, DType, decode, encode
from tle_attn.emu.errors import EmulationError, OutOfBounds, Race
from tle_attn.emu.integers import Int32, Int64
from tle_attn.emu.machine import running
from tle_attn.emu.source import Place, at, where
from tle_attn.emu.storage import Storage, Units
from tle_attn.emu.tiles import Tile, UniformTile, broadcast_shapes

TORCH_TYPES = {
    "bf16": ("bfloat16",),
    "f16": ("float16",),
    "f32": ("float32",),
    "fp8": ("float8_e4m3fn", "uint8"),
    "i32": ("int32",),
    "i64": ("int64",),
    "u8": ("uint8", "bool"),
}
_UNDEFINED = -0x5A5A5A5B  # what a masked-off integer element holds when `other` is not given


class GlobalTensor:
    """A torch tensor as flat memory from its data_ptr to its last element."""

    def __init__(self, tensor, dtype: DType, name: str, storage: Storage):
        self.owner = tensor  # keeps the memory alive
        self.name, self.dtype, self.storage = name, dtype, storage
        self.workspace = False
        strides = zip(tensor.shape, tensor.stride(), strict=True)
        self.size = 0 if tensor.numel() == 0 else 1 + sum((length - 1) * stride for length, stride in strides)
        memory = (ctypes.c_uint8 * (self.size * dtype.nbytes)).from_address(tensor.data_ptr()) if self.size else b""
        self.flat = np.frombuffer(memory, dtype.np)
        self.byte_offset = tensor.storage_offset() * tensor.element_size()
        storage.unit = min(storage.unit, dtype.nbytes)

    @property
    def units_per_element(self) -> int:
        return self.dtype.nbytes // self.storage.unit

    @property
    def first_unit(self) -> int:
        return self.byte_offset // self.storage.unit

    def units(self, offsets: Units) -> Units:
        """Tracking units of the elements at `offsets`."""
        n = self.units_per_element
        if n == 1:
            return offsets + self.first_unit
        return np.asarray(offsets)[..., None] * n + np.arange(self.first_unit, self.first_unit + n)


def check_tensor(tensor, dtype_name: str, what: str) -> None:
    """A CPU tensor of the right type."""
    kind = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
    if kind not in TORCH_TYPES[dtype_name]:
        raise EmulationError(f"{what}: a tensor of {kind} where {dtype_name} ({' or '.join(TORCH_TYPES[dtype_name])}) is expected")
    if tensor.device.type != "cpu":
        raise EmulationError(f"{what}: a tensor on {tensor.device}; the emulation works on CPU tensors")


class Storages:
    """The storages of a launch, so that two arguments on the same memory are tracked together."""

    def __init__(self):
        self.by_address: dict[int, Storage] = {}

    def tensor(self, tensor, dtype_name: str, name: str) -> GlobalTensor:
        check_tensor(tensor, dtype_name, f"argument {name}")
        memory = tensor.untyped_storage()
        storage = self.by_address.setdefault(memory.data_ptr(), Storage(memory.nbytes()))
        return GlobalTensor(tensor, BY_NAME[dtype_name], name, storage)


# ---------------------------------------------------------------- pointers
class Pointer:
    """A pointer argument plus an element offset (64-bit, as addresses are)."""

    __slots__ = ("tensor", "offset")

    def __init__(self, tensor: GlobalTensor, offset: int = 0):
        self.tensor, self.offset = tensor, offset

    def __add__(self, other: "Tile | int") -> "Pointer | PointerTile":
        if isinstance(other, Tile):
            return PointerTile(self.tensor, _integers(other) + self.offset)
        if not isinstance(other, int):
            raise EmulationError(f"pointer {self.tensor.name} plus {type(other).__name__} at {at(where())}")
        return Pointer(self.tensor, self.offset + int(other))

    __radd__ = __add__


class PointerTile:
    """A tile of pointers into one tensor."""

    __slots__ = ("tensor", "offsets")

    def __init__(self, tensor: GlobalTensor, offsets: np.ndarray):
        self.tensor, self.offsets = tensor, offsets

    @property
    def shape(self) -> tuple[int, ...]:
        return self.offsets.shape

    def __add__(self, other: "Tile | int") -> "PointerTile":
        return PointerTile(self.tensor, self.offsets + (_integers(other) if isinstance(other, Tile) else int(other)))

    __radd__ = __add__

    def __getitem__(self, index: object) -> "PointerTile":
        return PointerTile(self.tensor, self.offsets[index])


def _integers(tile: Tile) -> np.ndarray:
    if tile.dtype.is_float:
        raise EmulationError(f"a pointer plus a {tile.dtype} tile at {at(where())}")
    return tile.values.astype(np.int64)


def _check_bounds(tensor: GlobalTensor, offsets: np.ndarray, place: Place) -> None:
    if offsets.size:
        low, high = offsets.min(), offsets.max()
        if low < 0 or high >= tensor.size:
            raise OutOfBounds(f"{tensor.name}: element {low if low < 0 else high} of {tensor.size} at {at(place)}")


def _condition(mask: object, place: Place) -> bool:
    if isinstance(mask, Tile) and mask.shape:
        raise EmulationError(f"a mask of shape {mask.shape} for one element at {at(place)}")
    return bool(mask)


def _mask(mask: object, shape: tuple[int, ...], place: Place) -> np.ndarray:
    values = np.asarray(mask.values if isinstance(mask, Tile) else mask)
    if values.dtype != np.bool_:
        raise EmulationError(f"a mask of type {values.dtype} at {at(place)}: a condition is expected")
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise EmulationError(f"a mask of shape {values.shape} for a tile {shape} at {at(place)}") from None


def _other(other: object, dtype: DType) -> object:
    """The value of masked-off elements; undefined on the device when it is not given, so it is poison here."""
    if other is None:
        return np.nan if dtype.is_float else dtype.np.type(_UNDEFINED & 0x7F if dtype.nbytes == 1 else _UNDEFINED)
    return other.values if isinstance(other, Tile) else other


def scalar_value(values: np.ndarray, dtype: DType) -> "Tile | Int64":
    """One loaded element."""
    if dtype.is_float:
        return Tile(values.reshape(()), dtype)
    return Int64(int(values[0])) if dtype.nbytes == 8 else Int32(int(values[0]))


def load(pointer: "Pointer | PointerTile", mask: "Tile | bool | None" = None, other: "Tile | float | None" = None, cache_modifier: str = "") -> "Tile | Int64":
    machine, place = running(), where()
    role = machine.current
    if cache_modifier not in ("", ".ca", ".cg", ".cv"):
        raise EmulationError(f"cache_modifier {cache_modifier!r}: '', '.ca', '.cg' or '.cv', at {at(place)}")
    if isinstance(pointer, Pointer):
        return _load_scalar(pointer, mask, other, place)
    if not isinstance(pointer, PointerTile):
        raise EmulationError(f"load from {type(pointer).__name__} at {at(place)}")
    tensor, offsets = pointer.tensor, pointer.offsets
    dtype = tensor.dtype
    if mask is None:
        _check_bounds(tensor, offsets, place)
        tensor.storage.read(tensor, tensor.units(offsets), role.clock, role.now("load", place))
        return Tile(decode(tensor.flat[offsets], dtype), dtype) if machine.computes(dtype) else UniformTile(0.0, dtype, offsets.shape)
    chosen = _mask(mask, offsets.shape, place)
    used = offsets[chosen]
    _check_bounds(tensor, used, place)
    if used.size:
        tensor.storage.read(tensor, tensor.units(used), role.clock, role.now("load", place))
    if not machine.computes(dtype):
        return UniformTile(0.0, dtype, offsets.shape)
    values = np.empty(offsets.shape, np.float32 if dtype.is_float else dtype.np)
    values[...] = _other(other, dtype)
    values[chosen] = decode(tensor.flat[used], dtype)
    return Tile(values, dtype)


def _load_scalar(pointer: Pointer, mask: object, other: object, place: Place) -> "Tile | Int64":
    machine = running()
    role, tensor, offset = machine.current, pointer.tensor, pointer.offset
    dtype = tensor.dtype
    machine.spin(place)
    if mask is not None and not _condition(mask, place):
        return scalar_value(np.asarray([_other(other, dtype)], np.float32 if dtype.is_float else dtype.np), dtype)
    if not 0 <= offset < tensor.size:
        raise OutOfBounds(f"{tensor.name}: element {offset} of {tensor.size} at {at(place)}")
    tensor.storage.read(tensor, tensor.units(np.int64(offset)), role.clock, role.now("load", place))
    return scalar_value(decode(tensor.flat[offset : offset + 1], dtype), dtype)


def store(pointer: "Pointer | PointerTile", value: "Tile | float", mask: "Tile | bool | None" = None) -> None:
    machine, place = running(), where()
    role = machine.current
    if not isinstance(pointer, (Pointer, PointerTile)):
        raise EmulationError(f"store to {type(pointer).__name__} at {at(place)}")
    tensor = pointer.tensor
    dtype = tensor.dtype
    if isinstance(pointer, Pointer):
        if mask is not None and not _condition(mask, place):
            return
        offsets, shape = np.asarray(pointer.offset, np.int64).reshape(1), ()
    else:
        offsets, shape = pointer.offsets, pointer.offsets.shape
    values = value.values if isinstance(value, Tile) or not isinstance(value, (int, float)) else np.asarray(value)
    if broadcast_shapes(np.shape(values), shape) != shape:
        raise EmulationError(f"store of a tile {np.shape(values)} to a pointer tile {shape} at {at(place)}")
    chosen = ... if mask is None or not shape else _mask(mask, shape, place)
    offsets = offsets[chosen]
    _check_bounds(tensor, offsets, place)
    if not offsets.size:
        return
    storage, units = tensor.storage, tensor.units(offsets)
    storage.write(tensor, units, role.clock, role.now("store", place))
    if machine.computes(dtype):
        bits = np.broadcast_to(encode(_for_type(values, dtype, place), dtype), shape or (1,))[chosen]
        tensor.flat[offsets] = bits
        if not np.array_equal(tensor.flat[offsets].view(np.uint8), np.ascontiguousarray(bits).view(np.uint8)):
            raise Race(f"{role.name}'s store writes different values to one element of {tensor.name} at {at(place)}")
    machine.step()


def _for_type(values: np.ndarray, dtype: DType, place: Place) -> np.ndarray:
    """Values as the store converts them; an integer that does not fit its element is an error."""
    if dtype.is_float:
        return np.asarray(values, np.float32)
    if values.dtype.kind == "f":
        return values.astype(np.int64)
    if values.size and values.dtype.kind in "iu" and (values.min() < dtype.low or values.max() > dtype.high):
        raise OutOfBounds(f"store of an integer outside of {dtype} at {at(place)}")
    return values
