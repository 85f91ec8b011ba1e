"""TMA: asynchronous box loads that complete bytes on an mbarrier, and asynchronous box stores."""

from collections.abc import Sequence

from tle_attn.emu.barriers import Barrier, one_barrier
from tle_attn.emu.clocks import Access
from tle_attn.emu.descriptors import TensorDescriptor
from tle_attn.emu.errors import BarrierMisuse, EmulationError
from tle_attn.emu.machine import running
from tle_attn.emu.ordering import check_fenced, check_read, check_write
from tle_attn.emu.shared import POISON, Buffer
from tle_attn.emu.source import Place, at, where

PIECES = 4  # parts in which a box load lands


def _check_box(descriptor: TensorDescriptor, buffer: Buffer, shape: Sequence[int], offsets: Sequence[int], what: str, place: Place) -> tuple[int, ...]:
    if not isinstance(descriptor, TensorDescriptor) or not isinstance(buffer, Buffer):
        raise EmulationError(f"{what} between {type(descriptor).__name__} and {type(buffer).__name__}: a descriptor and a shared buffer, at {at(place)}")
    if tuple(shape) != descriptor.block_shape:
        raise EmulationError(f"{what} of {list(shape)} through a descriptor with box {list(descriptor.block_shape)} at {at(place)}")
    if len(offsets) != len(descriptor.block_shape) or not all(isinstance(offset, int) for offset in offsets):
        raise EmulationError(f"{what}: {list(offsets)} are no {len(descriptor.block_shape)} integer offsets, at {at(place)}")
    if descriptor.dtype is not buffer.dtype or descriptor.nbytes != buffer.nbytes or descriptor.block_shape[-1] != buffer.shape[-1]:
        raise EmulationError(
            f"{what} of {list(descriptor.block_shape)} {descriptor.dtype} and {buffer.label} {list(buffer.shape)} {buffer.dtype} at {at(place)}"
        )
    return tuple(int(offset) for offset in offsets)


def copy(descriptor: TensorDescriptor, buffer: Buffer, shape: Sequence[int], offsets: Sequence[int], barrier: Barrier) -> None:
    machine, place = running(), where()
    role = machine.current
    one_barrier(barrier, "copy", place)
    corner = _check_box(descriptor, buffer, shape, offsets, "copy", place)
    if not barrier.expect_bytes:
        raise BarrierMisuse(f"a copy signals {barrier}, which has no expect_bytes, at {at(place)}\n  barrier allocated at {at(barrier.place)}")
    access = Access(barrier.component, barrier.completed + 1, role.name, "TMA load", place)
    cells = buffer.cells()
    check_fenced(cells, buffer.label, access)
    check_write(cells, buffer.label, role.clock, access, buffer.order, tma=True)
    part = descriptor.inside(corner)
    if part is not None:
        tensor = descriptor.tensor
        tensor.storage.read(tensor, lambda: descriptor.units(corner, part), role.clock, role.now("TMA load", place))
    buffer.allocation.bytes[buffer.offset : buffer.offset + buffer.nbytes] = POISON
    source = descriptor.read(corner, part).reshape(buffer.shape) if machine.computes(buffer.dtype) else None
    key = object()
    barrier.start_transfer(key, buffer.nbytes, place)
    barrier.arrive(machine, f"{role.name}'s copy", role.release(), place, barrier.expect_bytes)
    if machine.trace:
        machine.trace.copy(role, buffer, barrier)
    machine.counts["copies"] += 1
    machine.counts["copy_bytes"] += buffer.nbytes
    rows = buffer.shape[0]
    pieces, row_bytes = min(PIECES, rows), buffer.nbytes // rows

    def landing(first: int, last: int):
        def land() -> None:
            if source is not None:
                buffer.write_bits(source[first:last], first)
            barrier.land(machine, key, (last - first) * row_bytes)

        return land

    machine.events += [landing(i * rows // pieces, (i + 1) * rows // pieces) for i in range(pieces)]
    machine.step()


def tma_store(descriptor: TensorDescriptor, buffer: Buffer, shape: Sequence[int], offsets: Sequence[int]) -> None:
    machine, place = running(), where()
    role = machine.current
    corner = _check_box(descriptor, buffer, shape, offsets, "tma_store", place)
    role.stores += 1
    access = Access(role.store_component, role.stores, role.name, "TMA store", place)
    cells = buffer.cells()
    check_fenced(cells, buffer.label, access)
    check_read(cells, buffer.label, role.clock, access, buffer.order)
    part = descriptor.inside(corner)
    if part is not None:
        tensor = descriptor.tensor
        tensor.storage.write(tensor, descriptor.units(corner, part), role.clock, access)
        if machine.computes(buffer.dtype):
            descriptor.elements(corner, part)[...] = buffer.bits().reshape(descriptor.block_shape)[part]
    machine.step()


def tma_store_wait() -> None:
    role = running().current
    role.clock[role.store_component] = role.stores
    running().step()


def evict_first(yes: int) -> None:
    """A cache hint: changes no result."""
