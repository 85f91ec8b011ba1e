"""Clusters: CTAs that run together and reach into each other's shared memory."""

from typing import Any

from tle_attn.emu.barriers import Barrier, one_barrier, wait_for_use
from tle_attn.emu.clocks import Access, join
from tle_attn.emu.dtypes import encode
from tle_attn.emu.errors import BarrierMisuse, EmulationError, OutOfBounds, Race
from tle_attn.emu.integers import Int32
from tle_attn.emu.machine import CTA, Role, running
from tle_attn.emu.ordering import check_read, check_write
from tle_attn.emu.shared import Buffer, check_tile_fits
from tle_attn.emu.source import Place, at, where
from tle_attn.emu.tiles import Tile


def cluster_dims(n: int) -> None:
    machine = running()
    if n != machine.cluster_size:
        raise EmulationError(f"cluster_dims({n}) in a launch with clusters of {machine.cluster_size} at {at(where())}")


def cluster_rank() -> Int32:
    return Int32(running().current.cta.rank)


def cluster_barrier() -> None:
    machine, place = running(), where()
    role = machine.current
    cluster = role.cta.cluster
    if role is not role.cta.main or role.children:
        raise BarrierMisuse(f"cluster_barrier inside warp_specialize at {at(place)}: it counts all threads of all CTAs of the cluster")
    cluster.arrived.append(role)
    if len(cluster.arrived) < len(cluster.ctas):
        machine.block(lambda: _missing(role), place)
    else:
        arrived, cluster.arrived = cluster.arrived, []
        together: dict[int, int] = {}
        for other in arrived:
            join(together, other.release())
        for other in arrived:
            join(other.clock, together)
        machine.ready += [other for other in arrived if other is not role]
    machine.step()


def _missing(role: Role) -> list[str]:
    cluster = role.cta.cluster
    missing = [cta for cta in cluster.ctas if cta.main not in cluster.arrived]
    return ["waits at the cluster barrier", "missing: " + ", ".join(f"CTA {cta.rank} of the cluster{' (has exited)' if cta.exited else ''}" for cta in missing)]


def _peer(buffer: Buffer, rank: int, place: Place) -> tuple[CTA, Buffer]:
    """The same buffer in CTA `rank`, which must be set up and alive."""
    role = running().current
    cluster = role.cta.cluster
    if not 0 <= rank < len(cluster.ctas):
        raise OutOfBounds(f"rank {rank} of a cluster of {len(cluster.ctas)} at {at(place)}")
    if not buffer.plain:
        raise EmulationError(f"{buffer.label} is swizzled: only plain buffers can be reached in other CTAs, at {at(place)}")
    cta = cluster.ctas[rank]
    if cta.exited:
        raise Race(f"{role.name} touches {buffer.label} of CTA {rank} after that CTA has exited, at {at(place)}")
    index = buffer.allocation.index
    if index < len(cta.allocations):
        peer = cta.allocations[index]
        component, stamp = peer.born
        if cta is role.cta or role.clock.get(component, 0) >= stamp:
            peer.refine(buffer.nbytes)
            return cta, Buffer(peer, buffer.shape, buffer.offset, True, f"CTA {rank}'s {buffer.label}")
    raise Race(f"{role.name} touches {buffer.label} of CTA {rank}, which may not have set it up yet (no cluster_barrier since), at {at(place)}")


def _rows(buffer: Buffer, first: int, count: int, place: Place) -> Buffer:
    """`count` rows of a buffer (elements of a vector) from `first` on."""
    if not 0 <= first <= buffer.shape[0] - count:
        raise OutOfBounds(f"rows {first} to {first + count - 1} of {buffer.label} {list(buffer.shape)} at {at(place)}")
    row = buffer.nbytes // buffer.shape[0]
    buffer.allocation.refine(row)
    return Buffer(buffer.allocation, (count, *buffer.shape[1:]), buffer.offset + int(first) * row, True, buffer.label)


def remote_store(buffer: Buffer, rank: int, tile: Tile) -> None:
    machine, place = running(), where()
    role = machine.current
    check_tile_fits(buffer, tile, "remote_store", place)
    _, peer = _peer(buffer, int(rank), place)
    cells = peer.cells()
    access = role.now("remote store", place)
    check_write(cells, peer.label, role.clock, access, peer.order)
    if machine.computes(peer.dtype):
        peer.write_bits(encode(tile.values, peer.dtype))
    machine.step()


def remote_load(buffer: Buffer, rank: int) -> Tile:
    machine, place = running(), where()
    role = machine.current
    if len(buffer.shape) != 2:
        raise EmulationError(f"remote_load of {buffer.label} {list(buffer.shape)}: a plain [rows, cols] buffer, at {at(place)}")
    _, peer = _peer(buffer, int(rank), place)
    check_read(peer.cells(), peer.label, role.clock, role.now("remote load", place), peer.order)
    tile = peer.tile()
    machine.step()
    return tile


def remote_load_rows(buffer: Buffer, rank: int, tile: Tile, first: int) -> Tile:
    machine, place = running(), where()
    role = machine.current
    if len(buffer.shape) > 2:
        raise EmulationError(f"remote_load_rows of {buffer.label} {list(buffer.shape)}: a plain [rows, cols] buffer or vector, at {at(place)}")
    _, peer = _peer(buffer, int(rank), place)
    peer = _rows(peer, int(first), tile.shape[0], place)
    check_read(peer.cells(), peer.label, role.clock, role.now("remote load", place), peer.order)
    read = peer.tile()
    machine.step()
    return read


def cluster_push(buffer: Buffer, rank: int, tile: Tile, barrier: Barrier) -> None:
    machine, place = running(), where()
    one_barrier(barrier, "cluster_push", place)
    check_tile_fits(buffer, tile, "cluster_push", place)
    cta, peer = _peer(buffer, int(rank), place)
    bits = encode(tile.values, peer.dtype) if machine.computes(peer.dtype) else None
    _push(cta, peer, bits, barrier, place)
    machine.step()


def cluster_deal(buffer: Buffer, tile: Tile, share: int, barrier: Barrier) -> None:
    machine, place = running(), where()
    one_barrier(barrier, "cluster_deal", place)
    rows = buffer.shape[0]
    if tile.shape[1:] != buffer.shape[1:] or rows % share or tile.shape[0] % share:
        raise EmulationError(f"cluster_deal of shares of {share} rows of a tile {list(tile.shape)} to {buffer.label} {list(buffer.shape)} at {at(place)}")
    if tile.dtype is not buffer.dtype:
        raise EmulationError(f"cluster_deal of a {tile.dtype} tile to {buffer.label} of {buffer.dtype} (convert it with .to) at {at(place)}")
    for rank in range(tile.shape[0] // share):
        cta, peer = _peer(buffer, rank, place)
        peer = _rows(peer, rank * share % rows, share, place)
        bits = encode(tile.values[rank * share : (rank + 1) * share], peer.dtype) if machine.computes(peer.dtype) else None
        _push(cta, peer, bits, barrier, place)
    machine.step()


def _push(cta: CTA, peer: Buffer, bits: Any, barrier: Barrier, place: Place) -> None:
    """Write `bits` into a buffer of CTA `cta` at some time, and complete their bytes on its copy of `barrier`."""
    machine = running()
    role, rank = machine.current, cta.rank
    remote = cta.barriers[barrier.index]
    use = barrier.completed  # all CTAs of the cluster count the same exchanges
    if cta is not role.cta and role.clock.get(remote.component, 0) < use:
        raise Race(f"{role.name} pushes for use {use} of {barrier} while CTA {rank} may still wait for an earlier one, at {at(place)}")
    if remote.completed > use:
        raise BarrierMisuse(
            f"{role.name} pushes for use {use} of {barrier}, which has already completed on CTA {rank}: too few bytes are expected there\n"
            f"  push at {at(place)}\n  barrier allocated at {at(remote.place)}"
        )
    access = Access(remote.component, use + 1, role.name, "push", place)
    check_write(peer.cells(), peer.label, role.clock, access, peer.order)
    published, key = role.release(), object()
    remote.start_transfer(key, peer.nbytes, place)

    def land() -> None:
        if bits is not None:
            peer.write_bits(bits)
        join(remote.clock, published)
        remote.land(machine, key, peer.nbytes)

    machine.events.append(land)


def cluster_push_wait(barrier: Barrier, use: int, nbytes: int) -> None:
    machine, place = running(), where()
    role = machine.current
    one_barrier(barrier, "cluster_push_wait", place)
    if barrier.expect_bytes or barrier.count != 1:
        raise BarrierMisuse(
            f"cluster_push_wait on {barrier}: one arrival and no expect_bytes (the wait expects), at {at(place)}\n  barrier allocated at {at(barrier.place)}"
        )
    if barrier.completed != use:
        raise BarrierMisuse(
            f"{role.name} waits for exchange {use} on {barrier}, which has completed {barrier.completed}: every CTA waits once per exchange, at {at(place)}"
        )
    barrier.arrive(machine, role.name, role.release(), place, int(nbytes))
    machine.step()
    wait_for_use(machine, barrier, int(use), place)


def cluster_arrive(barrier: Barrier, n: int) -> None:
    machine, place = running(), where()
    role = machine.current
    one_barrier(barrier, "cluster_arrive", place)
    ctas = role.cta.cluster.ctas
    if not 0 <= n <= len(ctas):
        raise OutOfBounds(f"arrivals at {n} CTAs of a cluster of {len(ctas)} at {at(place)}")
    if barrier.expect_bytes:
        raise BarrierMisuse(f"direct arrive on the transaction barrier {barrier} at {at(place)}")
    access = role.now("arrival", place)
    published = role.release()
    for cta in ctas[: int(n)]:
        if cta.exited:
            raise Race(f"{role.name} arrives at {barrier} of CTA {cta.rank} after that CTA has exited, at {at(place)}")
        remote = cta.barriers[barrier.index] if barrier.index < len(cta.barriers) else None
        if remote is None or (cta is not role.cta and role.clock.get(remote.born[0], 0) < remote.born[1]):
            raise Race(f"{role.name} arrives at {barrier} of CTA {cta.rank}, which may not have set it up yet (no cluster_barrier since), at {at(place)}")
        if cta is not role.cta:
            remote.from_peers.append(access)
        remote.arrive(machine, role.name, dict(published), place)
    machine.step()


def cluster_wait(barrier: Barrier, use: int) -> None:
    machine, place = running(), where()
    one_barrier(barrier, "cluster_wait", place)
    machine.counts["waits"] += 1
    machine.step()
    wait_for_use(machine, barrier, int(use), place)
