"""Clusters: CTAs that run together and reach into each other's shared memory."""

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


def cluster_push(buffer: Buffer, rank: int, tile: Tile, barrier: Barrier) -> None:
    machine, place = running(), where()
    role = machine.current
    one_barrier(barrier, "cluster_push", place)
    check_tile_fits(buffer, tile, "cluster_push", place)
    cta, peer = _peer(buffer, int(rank), place)
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
    bits = encode(tile.values, peer.dtype) if machine.computes(peer.dtype) else None
    published, key = role.release(), object()
    remote.start_transfer(key, peer.nbytes, place)

    def land() -> None:
        if bits is not None:
            peer.write_bits(bits)
        join(remote.clock, published)
        remote.land(machine, key, peer.nbytes)

    machine.events.append(land)
    machine.step()


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
