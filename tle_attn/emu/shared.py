"""Shared memory: allocations, their slots, and access from registers.

A wgmma/TMA tile [rows, cols] lies as column blocks of 128 bytes, one after the other, each rows x 128 B; a shorter row is one block.
(The swizzle inside a block depends on row % 8 only; it moves no byte between cells and is not modelled.)  A plain buffer is row-major.
"""

from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from tle_attn.emu.clocks import Access, Clock
from tle_attn.emu.dtypes import DType, decode, encode
from tle_attn.emu.errors import EmulationError, OutOfBounds, Race
from tle_attn.emu.machine import CTA, running
from tle_attn.emu.ordering import Cell, check_read, check_write
from tle_attn.emu.registers import power_of_two
from tle_attn.emu.source import Place, assigned_name, at, where
from tle_attn.emu.tiles import Tile, UniformTile

BLOCK = 128  # bytes of a row in one swizzled column block
POISON = 0xFF  # NaN in every float format, -1 as an integer


class Allocation:
    """The bytes of one `alloc` or `alloc_plain`."""

    def __init__(self, cta: CTA, name: str, shape: tuple[int, ...], dtype: DType, place: Place, cells: int, born: tuple[int, int]):
        self.cta, self.name, self.dtype, self.place, self.born = cta, name, dtype, place, born
        self.index = len(cta.allocations)
        self.shape = shape
        self.bytes = np.full(prod(shape) * dtype.nbytes, POISON, np.uint8)
        self.cells = [Cell() for _ in range(cells)]
        self.cell_bytes = self.bytes.size // cells

    def refine(self, nbytes: int) -> None:
        """Make the cells small enough that pieces of `nbytes` are whole numbers of cells."""
        size = gcd(self.cell_bytes, nbytes)
        if size < self.cell_bytes:
            parts = self.cell_bytes // size
            self.cells = [cell.split() for cell in self.cells for _ in range(parts)]
            self.cell_bytes = size

    def check_exit(self, clock: Clock) -> None:
        """At the end of the CTA every access must be known to be over."""
        for cell in self.cells:
            for read in cell.reads.values():
                if not read.known_to(clock):
                    raise Race(f"CTA {self.cta.rank} may exit before {read} of its {self.name} is done\n  read at {read.line}")
            if cell.write is not None and not cell.write.known_to(clock):
                raise Race(f"CTA {self.cta.rank} may exit while {cell.write} to its {self.name} is in flight\n  write at {cell.write.line}")


class Buffer:
    """A view of an allocation: the whole of it, a ring, or one slot."""

    def __init__(self, allocation: Allocation, shape: tuple[int, ...], offset: int, plain: bool, label: str):
        self.allocation, self.shape, self.offset, self.plain, self.label = allocation, shape, offset, plain, label
        self.dtype = allocation.dtype
        self.nbytes = prod(shape) * self.dtype.nbytes
        row_bytes = shape[-1] * self.dtype.nbytes
        #: how the bytes of the view lie; two views can share data only when it agrees
        self.order = "rows without swizzle" if plain else f"{min(BLOCK, row_bytes)}-byte swizzled blocks"
        self.elements = allocation.bytes[offset : offset + self.nbytes].view(self.dtype.np)
        if plain or row_bytes <= BLOCK:
            self.elements = self.elements.reshape(shape)
        elif len(shape) == 2:  # [rows, blocks, columns of a block], in the order of the tile's rows and columns
            width = BLOCK // self.dtype.nbytes
            self.elements = self.elements.reshape(shape[1] // width, shape[0], width).transpose(1, 0, 2)
        self._slots: dict[int, Buffer] = {}

    def slot(self, i: int) -> "Buffer":
        """Slot `i` of a ring."""
        slot = self._slots.get(i)
        if slot is None:
            slot = self._slots[int(i)] = self._make_slot(i)
        return slot

    def _make_slot(self, i: int) -> "Buffer":
        if len(self.shape) < (2 if self.plain else 3):
            raise EmulationError(f"slot of {self.label} {list(self.shape)}, which is no ring, at {at(where())}")
        if not 0 <= i < self.shape[0]:
            raise OutOfBounds(f"slot {i} of {self.label} ({self.shape[0]} slots) at {at(where())}")
        shape = self.shape[1:]
        nbytes = self.nbytes // self.shape[0]
        self.allocation.refine(nbytes)
        return Buffer(self.allocation, shape, self.offset + int(i) * nbytes, self.plain, f"{self.label}[{i}]")

    def cells(self) -> list[Cell]:
        if not self.plain and len(self.shape) > 2:
            raise EmulationError(f"{self.label} is a ring: take a slot, at {at(where())}")
        allocation = self.allocation
        first = self.offset // allocation.cell_bytes
        return allocation.cells[first : first + self.nbytes // allocation.cell_bytes]

    def bits(self) -> np.ndarray:
        """A copy of the stored elements."""
        return self.elements.reshape(self.shape).copy()

    def write_bits(self, bits: np.ndarray, first_row: int = 0) -> None:
        """Store rows from `first_row` on."""
        target = self.elements[first_row : first_row + len(bits)]
        target[...] = bits if target.ndim == bits.ndim else bits.reshape(target.shape)

    def values(self) -> np.ndarray:
        return decode(self.elements, self.dtype).reshape(self.shape)

    def tile(self) -> Tile:
        """The content as a register tile."""
        return Tile(self.values().copy(), self.dtype) if running().computes(self.dtype) else UniformTile(0.0, self.dtype, self.shape)


def _new(shape: Sequence[int], dtype: DType, plain: bool, cells: int) -> Buffer:
    machine, place = running(), where()
    role = machine.current
    if not isinstance(dtype, DType):
        raise EmulationError(f"an allocation of type {dtype!r} at {at(place)}")
    if not all(isinstance(size, int) and size > 0 for size in shape):
        raise EmulationError(f"an allocation of shape {list(shape)}: sizes are positive constants, at {at(place)}")
    if role is not role.cta.main or role.children:
        raise EmulationError(f"an allocation inside a role at {at(place)}: allocate in the kernel, before warp_specialize")
    cta = role.cta
    name = assigned_name(place, "smem")
    allocation = Allocation(cta, name, tuple(shape), dtype, place, cells, (role.component, role.clock[role.component]))
    cta.allocations.append(allocation)
    machine.shared_bytes = max(machine.shared_bytes, sum(a.bytes.size for a in cta.allocations))
    return Buffer(allocation, tuple(shape), 0, plain, name)


def _check_tile(shape: Sequence[int], dtype: DType) -> None:
    """A swizzled tile: rows of one swizzle width or whole 128-byte blocks, rows in eights."""
    row_bytes = shape[-1] * dtype.nbytes
    power_of_two("a shared tile", *shape[-2:])
    if row_bytes < 32 or shape[-2] % 8:
        raise EmulationError(f"a wgmma/TMA tile of {list(shape[-2:])} {dtype}: rows come in eights and have at least 32 bytes, at {at(where())}")


def alloc(shape: Sequence[int], dtype: DType) -> Buffer:
    if len(shape) not in (2, 3):
        raise EmulationError(f"alloc of {list(shape)}: a tile [rows, cols] or a ring [n, rows, cols], at {at(where())}")
    _check_tile(shape, dtype)
    return _new(shape, dtype, False, shape[0] if len(shape) == 3 else 1)


def alloc_plain(shape: Sequence[int], dtype: DType) -> Buffer:
    if not 1 <= len(shape) <= 3:
        raise EmulationError(f"alloc_plain of {list(shape)}: one, two or three dimensions, at {at(where())}")
    return _new(shape, dtype, True, 1)


def alias(buffer: Buffer, shape: Sequence[int]) -> Buffer:
    """The bytes of `buffer` as a ring [n, rows, cols] of smaller tiles."""
    place = where()
    allocation = buffer.allocation
    if buffer.plain or len(shape) != 3:
        raise EmulationError(f"alias of {buffer.label} as {list(shape)}: a wgmma/TMA buffer as a ring [n, rows, cols], at {at(place)}")
    _check_tile(shape, allocation.dtype)
    if any(cell.write is not None or cell.reads for cell in allocation.cells):
        raise EmulationError(f"alias of {buffer.label} after its first access at {at(place)}")
    nbytes = prod(shape) * allocation.dtype.nbytes
    if nbytes > buffer.nbytes:
        raise OutOfBounds(f"alias of {buffer.label} ({buffer.nbytes} bytes) as {list(shape)} ({nbytes} bytes) at {at(place)}")
    return Buffer(allocation, tuple(shape), buffer.offset, False, assigned_name(place, "alias"))


# ---------------------------------------------------------------- access from registers (generic proxy)
def check_tile_fits(buffer: Buffer, tile: Tile, what: str, place: Place) -> None:
    if not isinstance(tile, Tile):
        tile.values  # a pending WGMMA result reports itself here
    if tuple(tile.shape) != buffer.shape:
        raise EmulationError(f"{what} of a tile {list(tile.shape)} to {buffer.label} {list(buffer.shape)} at {at(place)}")
    if tile.dtype is not buffer.dtype:
        raise EmulationError(f"{what} of a {tile.dtype} tile to {buffer.label} of {buffer.dtype} (convert it with .to) at {at(place)}")


def store_cells(buffer: Buffer, name: str, clock: Clock, access: Access) -> None:
    """A generic store to the whole view: ordered, and unfenced from now on."""
    cells = buffer.cells()
    check_write(cells, name, clock, access, buffer.order)
    for cell in cells:
        cell.unfenced = access
    running().current.unfenced.add(buffer.allocation)


def smem_store(buffer: Buffer, tile: Tile) -> None:
    place = where()
    role = running().current
    check_tile_fits(buffer, tile, "smem_store", place)
    store_cells(buffer, buffer.label, role.clock, role.now("store", place))
    if running().trace:
        running().trace.store(role, buffer)
    if running().computes(buffer.dtype):
        buffer.write_bits(encode(tile.values, buffer.dtype))


def _load(buffer: Buffer, place: Place) -> Tile:
    role = running().current
    cells = buffer.cells()
    check_read(cells, buffer.label, role.clock, role.now("load", place), buffer.order)
    fetch = role.fetch(place)
    for cell in cells:
        cell.fetches[fetch.component] = fetch
    if running().trace:
        running().trace.read(role, buffer)
    return buffer.tile()


def smem_load(buffer: Buffer) -> Tile:
    if len(buffer.shape) > 2:
        raise EmulationError(f"smem_load of {buffer.label} {list(buffer.shape)}: a [rows, cols] buffer or slot, or a plain vector, at {at(where())}")
    return _load(buffer, where())


def zero_rows(buffer: Buffer, start: int) -> None:
    place = where()
    if buffer.plain or len(buffer.shape) != 2:
        raise EmulationError(f"zero_rows of {buffer.label} {list(buffer.shape)}: a wgmma/TMA tile, at {at(place)}")
    tile = _load(buffer, place)
    kept = np.arange(buffer.shape[0])[:, None] < int(start)
    smem_store(buffer, Tile(np.where(kept, tile.values, np.zeros((), tile.values.dtype)), buffer.dtype))


def _vector(buffer: Buffer, size: int, what: str) -> None:
    if not buffer.plain or buffer.shape != (size,):
        raise EmulationError(f"{what} of {buffer.label} {list(buffer.shape)}: a plain vector of {size}, at {at(where())}")


def smem_load_rows(buffer: Buffer, tile: Tile) -> Tile:
    _vector(buffer, tile.shape[0], "smem_load_rows")
    return _load(buffer, where())


def smem_load_cols(buffer: Buffer, tile: Tile) -> Tile:
    _vector(buffer, tile.shape[1], "smem_load_cols")
    return _load(buffer, where())


def smem_operand(buffer: Buffer, acc: Tile) -> Tile:
    if buffer.plain or len(buffer.shape) != 2 or buffer.shape[0] != acc.shape[0]:
        raise EmulationError(f"smem_operand of {buffer.label} {list(buffer.shape)} for an accumulator of {acc.shape[0]} rows: a wgmma tile of as many, at {at(where())}")
    return _load(buffer, where())


def fence_async() -> None:
    role = running().current
    for allocation in role.unfenced:
        for cell in allocation.cells:
            if cell.unfenced is not None and cell.unfenced.component == role.component:
                cell.unfenced = None
    role.unfenced.clear()
    role.settle(role.fetches)
