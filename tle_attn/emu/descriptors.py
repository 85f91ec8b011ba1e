"""Tensor descriptors: boxes of a strided global tensor, as TMA reads and writes them."""

from collections.abc import Sequence
from math import prod

import numpy as np

from tle_attn.emu.dtypes import BY_NAME, DType
from tle_attn.emu.errors import EmulationError
from tle_attn.emu.memory import GlobalTensor, Storages

_NAMES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float8_e4m3fn": "fp8", "int32": "i32", "int64": "i64", "uint8": "u8"}
MAX_BOX_SIDE = 256
ALIGNMENT = 16  # bytes: base address, strides, and inner side of the box


class TensorDescriptor:
    """A box shape over a tensor of up to five dimensions.

    `shape` and `strides` are in elements, outermost first; the last stride is 1.  Parts of a box outside of `shape` read as zero and are
    not written.
    """

    def __init__(self, tensor, shape: Sequence[int], strides: Sequence[int], block_shape: Sequence[int], dtype: "DType | str | None" = None):
        kind = str(tensor.dtype).removeprefix("torch.")
        name = dtype.name if isinstance(dtype, DType) else dtype or _NAMES.get(kind)
        if name not in BY_NAME:
            raise EmulationError(f"a descriptor of type {name!r}: one of {', '.join(BY_NAME)}")
        self.owner, self.dtype = tensor, BY_NAME[name]
        self.shape, self.strides, self.block_shape = (tuple(int(x) for x in sizes) for sizes in (shape, strides, block_shape))
        self.nbytes = prod(self.block_shape) * self.dtype.nbytes
        self._check()
        self.tensor: GlobalTensor | None = None  # bound at launch

    def _check(self) -> None:
        rank, nbytes = len(self.shape), self.dtype.nbytes
        if not 1 <= rank <= 5 or len(self.strides) != rank or len(self.block_shape) != rank:
            raise EmulationError(
                f"a descriptor of shape {list(self.shape)}, strides {list(self.strides)}, box {list(self.block_shape)}: one to five dimensions, equal in all"
            )
        if self.strides[-1] != 1:
            raise EmulationError(f"a descriptor with inner stride {self.strides[-1]}: TMA needs 1")
        if any(stride * nbytes % ALIGNMENT for stride in self.strides[:-1]):
            raise EmulationError(f"a descriptor with strides {list(self.strides)} of {self.dtype}: TMA needs multiples of {ALIGNMENT} bytes")
        if self.owner.data_ptr() % ALIGNMENT:
            raise EmulationError(f"a descriptor on an address that is not {ALIGNMENT}-byte aligned")
        if not all(0 < side <= MAX_BOX_SIDE for side in self.block_shape) or self.block_shape[-1] * nbytes % ALIGNMENT:
            raise EmulationError(f"a box {list(self.block_shape)} of {self.dtype}: sides of 1 .. {MAX_BOX_SIDE}, rows in multiples of {ALIGNMENT} bytes")

    @property
    def name(self) -> str:
        return self.tensor.name if self.tensor else "descriptor"

    def bind(self, storages: Storages, name: str) -> "TensorDescriptor":
        """This descriptor as the argument `name` of a launch."""
        bound = TensorDescriptor.__new__(TensorDescriptor)
        bound.__dict__.update(self.__dict__)
        bound.tensor = storages.tensor(self.owner, self.dtype.name, name)
        last = sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))
        if all(self.shape) and last >= bound.tensor.size:
            raise EmulationError(
                f"descriptor {name} of shape {list(self.shape)} and strides {list(self.strides)} reaches past its tensor ({bound.tensor.size} elements)"
            )
        return bound

    def inside(self, corner: Sequence[int]) -> "tuple[slice, ...] | None":
        """The part of the box at `corner` that lies inside of the tensor, in box coordinates; None when there is none."""
        part = []
        for start, length, side in zip(corner, self.shape, self.block_shape, strict=True):
            low, high = max(start, 0), min(start + side, length)
            if high <= low:
                return None
            part.append(slice(low - start, high - start))
        return tuple(part)

    def elements(self, corner: Sequence[int], part: tuple[slice, ...]) -> np.ndarray:
        """The tensor's elements under `part` of the box (a view)."""
        nbytes = self.dtype.nbytes
        base = sum((start + piece.start) * stride for start, piece, stride in zip(corner, part, self.strides, strict=True))
        shape = [piece.stop - piece.start for piece in part]
        return np.ndarray(shape, self.dtype.np, self.tensor.flat, base * nbytes, [stride * nbytes for stride in self.strides])

    def units(self, corner: Sequence[int], part: tuple[slice, ...]) -> np.ndarray:
        """Tracking units of those elements."""
        offsets = np.zeros((), np.int64)
        for start, piece, stride in zip(corner, part, self.strides, strict=True):
            offsets = offsets[..., None] + (start + np.arange(piece.start, piece.stop)) * stride
        return self.tensor.units(offsets)

    def read(self, corner: Sequence[int], part: "tuple[slice, ...] | None") -> np.ndarray:
        """The stored elements of the box at `corner`, of which `part` is inside of the tensor; zeros elsewhere."""
        if part is not None:
            elements = self.elements(corner, part)
            if elements.size * self.dtype.nbytes == self.nbytes:
                return elements.copy()
        box = np.zeros(self.block_shape, self.dtype.np)
        if part is not None:
            box[part] = elements
        return box
