"""The emulated shared memory of ``tle.gpu``: buffers, their views, and pointers into them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from tle_attn.emu import ops
from tle_attn.emu.dtypes import I32, DType
from tle_attn.emu.integers import Int32, Int64
from tle_attn.emu.tiles import Tile
from tle_attn.emu.tle_target.errors import is_static, not_emulated, require


@frozen
class Scope:
    """Where a buffer lives."""

    name: str


smem, tmem = Scope("shared memory"), Scope("tensor memory")


@frozen(eq=False)
class BufferedTensor:
    """A ``tle.gpu.buffered_tensor``: a buffer of the emulation with what FlagTree knows of it."""

    buffer: Any
    dtype: DType
    shape: tuple[int, ...]
    mma_layout: bool  #: NVMMA layout (wgmma and TMA), not plain row-major
    shard: int | None = None  #: rank of the CTA that a remote-marked buffer lies in

    def slot(self, stage: int) -> BufferedTensor:
        """One stage of a ring."""
        require(len(self.shape) >= 2, f"slot: a buffer of rank >= 2 is needed, this one has shape {list(self.shape)}")
        require(isinstance(stage, int) and type(stage) is not bool, f"slot: the stage must be a scalar int32, got {type(stage).__name__}")
        require(not isinstance(stage, Int64) or isinstance(stage, Int32), "slot: the stage must be int32, got int64")
        return BufferedTensor(self.buffer.slot(stage), self.dtype, self.shape[1:], self.mma_layout, self.shard)

    def reshape(self, shape: Sequence[int]) -> BufferedTensor:
        """Refused: FlagTree's reshape of a swizzled tile is legal, but the dialect has no such view."""
        require(all(is_static(n) and n > 0 for n in shape), f"reshape: dimensions must be compile-time integers > 0, got {list(shape)}")
        require(math.prod(shape) == math.prod(self.shape), f"reshape: {list(self.shape)} and {list(shape)} have different sizes")
        raise not_emulated("reshape of a buffer")

    def at_shard(self, rank: int) -> BufferedTensor:
        """The same buffer of CTA `rank` of the cluster."""
        require(self.shard is None, "remote cannot be applied twice; take pointers with local_ptr")
        return BufferedTensor(self.buffer, self.dtype, self.shape, self.mma_layout, rank)

    def local(self, what: str) -> Any:
        """The emulation's buffer, for a call that works on this CTA's memory only."""
        require(self.shard is None, f"{what}: the buffer is remote; only local_ptr reaches it")
        return self.buffer


def alloc(shape, dtype, layout=None, scope=smem, *, init_value=None, alias=None, alias_offset_bytes=0, nv_mma_shared_layout=True):
    require(isinstance(shape, (list, tuple)) and len(shape) > 0, f"alloc: shape must be a non-empty list or tuple, got {shape!r}")
    require(all(is_static(n) and n > 0 for n in shape), f"alloc: dimensions must be compile-time integers > 0, got {list(shape)}")
    require(isinstance(dtype, DType), f"alloc: dtype must be a tl.dtype, got {dtype!r}")
    require(isinstance(scope, Scope), f"alloc: scope must be tle.gpu.smem, got {scope!r}")
    require(scope is smem, f"alloc: {scope.name} is not yet supported")
    require(type(nv_mma_shared_layout) is bool, "alloc: nv_mma_shared_layout must be a compile-time bool")
    require(init_value is None or alias is None, "alloc: an alias cannot have an init_value")
    if layout is not None or init_value is not None:
        raise not_emulated("alloc with an explicit layout or an init_value")
    shape = tuple(shape)
    if alias is not None:
        return _alias(shape, dtype, alias, alias_offset_bytes, nv_mma_shared_layout)
    if len(shape) > 3:
        raise not_emulated("alloc of rank > 3")
    swizzled = nv_mma_shared_layout and len(shape) >= 2
    return BufferedTensor((ops.alloc if swizzled else ops.alloc_plain)(list(shape), dtype), dtype, shape, nv_mma_shared_layout)


def _alias(shape: tuple[int, ...], dtype: DType, source: Any, offset: Any, mma_layout: bool) -> BufferedTensor:
    require(isinstance(source, BufferedTensor), f"alloc: alias must be a buffered_tensor, got {type(source).__name__}")
    buffer = source.local("alloc(alias=)")
    require(is_static(offset) and 0 <= offset < 2**31, f"alloc: alias_offset_bytes must be a compile-time integer >= 0, got {offset!r}")
    require(offset % dtype.nbytes == 0, f"alloc: alias_offset_bytes {offset} is not aligned to {dtype}")
    size, room = offset + math.prod(shape) * dtype.nbytes, math.prod(source.shape) * source.dtype.nbytes
    require(size <= room, f"alloc: the alias ends at byte {size} of a buffer of {room}")
    if offset or dtype is not source.dtype or len(shape) != 3 or not (mma_layout and source.mma_layout):
        raise not_emulated("an alias that is not a ring of swizzled tiles of the same type from the first byte on")
    return BufferedTensor(ops.alias(buffer, list(shape)), dtype, shape, True)


def local_ptr(buffer, indices=None):
    require(isinstance(buffer, BufferedTensor), f"local_ptr: not a buffered_tensor but {type(buffer).__name__}")
    if indices is None:
        return LocalPointer(buffer, None)
    require(isinstance(indices, (list, tuple)), "local_ptr: indices must be a list or tuple of integers or tensors")
    require(len(indices) == len(buffer.shape), f"local_ptr: {len(indices)} indices for a buffer of rank {len(buffer.shape)}")
    blocks = [i for i in indices if isinstance(i, Tile)]
    require(all(isinstance(i, (Tile, int)) for i in indices), "local_ptr: indices must be integers")
    require(not any(b.dtype.is_float for b in blocks), "local_ptr: index tensors must be of an integer type")
    require(len(blocks) in (0, len(indices)), "local_ptr: indices are all scalars or all tensors; there is no broadcast")
    require(len({b.shape for b in blocks}) <= 1, f"local_ptr: index tensors must have identical shapes, got {[b.shape for b in blocks]}")
    return LocalPointer(buffer, tuple(indices))


@frozen(eq=False)
class LocalPointer:
    """Pointers into a buffer: of every element, or where `indices` say."""

    buffer: BufferedTensor
    indices: tuple | None

    def load(self, mask: Any, other: Any) -> Tile:
        b = self.buffer
        if self.indices is not None or mask is not None:
            raise not_emulated("a load through local_ptr of a part of a buffer")
        if b.shard is not None:
            return ops.remote_load(b.buffer, b.shard)
        if len(b.shape) == 1:
            return ops.smem_load_rows(b.buffer, ops.vec_index(b.shape[0]))
        return ops.smem_load(b.buffer)

    def store(self, value: Any, mask: Any) -> None:
        b = self.buffer
        require(isinstance(value, Tile), "a store through local_ptr needs a tensor")
        if self.indices is not None:
            self._scatter(self.indices, value, mask)
            return
        require(value.shape == b.shape, f"store of {list(value.shape)} through local_ptr of {list(b.shape)}")
        if mask is not None:
            raise not_emulated("a masked store through local_ptr of a whole buffer")
        if b.shard is not None:
            ops.remote_store(b.buffer, b.shard, value)
        else:
            ops.smem_store(b.buffer, value)

    def _scatter(self, indices: tuple, value: Tile, mask: Any) -> None:
        """Only the compaction of a list: the kept lanes go to consecutive elements, in order."""
        b, index = self.buffer, indices[0]
        if len(indices) != 1 or not isinstance(index, Tile) or mask is None or b.shard is not None:
            raise not_emulated("a store through local_ptr with indices, other than a masked one into a list")
        shapes = [list(x.shape) for x in (value, index, mask)]
        require(shapes[0] == shapes[1] == shapes[2], f"store of {shapes[0]} through {shapes[1]} pointers with a mask of {shapes[2]}")
        kept = index.values[mask.values]
        if kept.size and (kept != kept[0] + range(kept.size)).any():
            raise not_emulated("a scatter to elements that are not consecutive")
        ops.compact(mask.to(I32), value, b.buffer, Int32(kept[0]) if kept.size else Int32(0))
