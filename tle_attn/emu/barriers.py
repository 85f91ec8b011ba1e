"""mbarriers: arrivals, transaction bytes and phases, with the logical use number of every wait checked against the parity."""

from tle_attn.emu.clocks import Access, Clock, join
from tle_attn.emu.errors import BarrierMisuse, EmulationError, OutOfBounds, Race
from tle_attn.emu.machine import Machine, Role, running
from tle_attn.emu.source import Place, assigned_name, at, where

PENDING, READY = 0, 1
KEPT_USES = 3  # clocks of completed uses that a waiter can still need


class Barrier:
    """One mbarrier."""

    def __init__(self, machine: Machine, index: int, name: str, slot: int, count: int, ready: int, expect_bytes: int, place: Place):
        self.index, self.name, self.slot, self.place = index, name, slot, place
        self.count, self.ready, self.expect_bytes = count, ready, expect_bytes
        self.component = machine.new_component(global_memory=False)
        self.pending, self.bytes, self.completed = count, 0, 0
        self.clock: Clock = {}
        self.completed_clocks: dict[int, Clock] = {}
        self.arrived: list[tuple[str, Place]] = []
        self.in_flight: dict[object, int] = {}  # transfer -> bytes that have not landed
        self.transfers: dict[object, Place] = {}
        self.waiters: list[Role] = []
        self.from_peers: list[Access] = []  # arrivals of other CTAs
        role = machine.current
        self.born = (role.component, role.clock[role.component])

    def __str__(self) -> str:
        return f"{self.name}[{self.slot}]"

    def state(self) -> str:
        text = f"{self}: {self.completed} completed use(s); the current one lacks {self.pending} of {self.count} arrival(s)"
        if self.bytes:
            text += f" and {self.bytes} byte(s)"
        if self.arrived:
            text += "; arrived: " + ", ".join(f"{who} at line {place[1]}" for who, place in self.arrived)
        return text

    def arrive(self, machine: Machine, who: str, clock: Clock, place: Place, nbytes: int = 0) -> None:
        """One arrival that also expects `nbytes`; `clock` is what it publishes."""
        if self.clock:
            join(self.clock, clock)
        else:
            self.clock = clock
        self.bytes += nbytes
        self.pending -= 1
        self.arrived.append((who, place))
        if self.pending < 0:
            hint = ": two copies on one slot in one use?" if self.expect_bytes else ""
            raise BarrierMisuse(
                f"{self}: more than {self.count} arrival(s) in use {self.completed}{hint}\n  arrival at {at(place)}\n  barrier allocated at {at(self.place)}"
            )
        self.complete(machine)

    def start_transfer(self, key: object, nbytes: int, place: Place) -> None:
        self.in_flight[key], self.transfers[key] = nbytes, place

    def land(self, machine: Machine, key: object, nbytes: int) -> None:
        """`nbytes` of a transfer have been written."""
        self.in_flight[key] -= nbytes
        if not self.in_flight[key]:
            del self.in_flight[key], self.transfers[key]
        self.bytes -= nbytes
        self.complete(machine)

    def complete(self, machine: Machine) -> None:
        """End the current use when its arrivals and bytes are complete."""
        if self.pending or self.bytes:
            return
        if self.in_flight:
            raise BarrierMisuse(
                f"{self} completes its use {self.completed} with {sum(self.in_flight.values())} byte(s) still in flight: too few bytes are expected\n"
                f"  barrier allocated at {at(self.place)}\n  transfer at {at(next(iter(self.transfers.values())))}"
            )
        self.clock[self.component] = self.completed + 1
        self.completed_clocks[self.completed] = self.clock
        self.completed_clocks.pop(self.completed - KEPT_USES, None)
        self.completed += 1
        self.clock, self.pending, self.arrived = {}, self.count, []
        machine.ready += self.waiters
        self.waiters.clear()

    def check_exit(self, rank: int, clock: Clock) -> None:
        """At the end of CTA `rank` no arrival of another CTA may be under way."""
        for arrival in self.from_peers:
            if not arrival.known_to(clock):
                raise Race(f"CTA {rank} may exit before {arrival} at its {self} is done\n  arrival at {arrival.line}")


class Barriers:
    """An array of mbarriers."""

    def __init__(self, slots: list[Barrier]):
        self.slots = slots

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, i: int) -> Barrier:
        if not 0 <= i < len(self.slots):
            raise OutOfBounds(f"barrier {self.slots[0].name}[{i}] of {len(self.slots)} at {at(where())}")
        return self.slots[i]


def one_barrier(barrier: Barrier, what: str, place: Place) -> Barrier:
    """The argument of an operation: one mbarrier of an array."""
    if not isinstance(barrier, Barrier):
        raise BarrierMisuse(f"{what} on {type(barrier).__name__}: one mbarrier, bars[i], at {at(place)}")
    unpublished = running().current.cta.unpublished_barriers
    if unpublished:
        raise BarrierMisuse(f"{what} on {barrier} before its set-up is published, at {at(place)}: no alloc_barriers follows the one with more=True at {at(unpublished)}")
    return barrier


def alloc_barriers(n: int, arrive_count: int = 1, init: int = PENDING, expect_bytes: int = 0, more: bool = False) -> Barriers:
    machine, place = running(), where()
    cta = machine.current.cta
    if not (isinstance(n, int) and isinstance(arrive_count, int) and n > 0 and arrive_count > 0 and expect_bytes >= 0):
        raise EmulationError(f"alloc_barriers({n}, {arrive_count}, expect_bytes={expect_bytes}): positive constants, at {at(place)}")
    if init not in (PENDING, READY):
        raise EmulationError(f"alloc_barriers with init={init!r}: PENDING or READY, at {at(place)}")
    name, first = assigned_name(place, "barrier"), len(cta.barriers)
    barriers = Barriers([Barrier(machine, first + i, name, i, arrive_count, init, expect_bytes, place) for i in range(n)])
    cta.barriers += barriers.slots
    cta.unpublished_barriers = place if more else None
    return barriers


def barrier_arrive(barrier: Barrier) -> None:
    machine, place = running(), where()
    role = machine.current
    if one_barrier(barrier, "barrier_arrive", place).expect_bytes:
        raise BarrierMisuse(f"direct arrive on the transaction barrier {barrier} at {at(place)}")
    if machine.trace:
        machine.trace.arrive(role, barrier)
    barrier.arrive(machine, role.name, role.release(), place)
    machine.step()


def barrier_wait(barrier: Barrier, use: int) -> None:
    machine, place = running(), where()
    one_barrier(barrier, "barrier_wait", place)
    if not isinstance(use, int):
        raise BarrierMisuse(f"barrier_wait for use {use!r} of {barrier}: an integer, at {at(place)}")
    machine.counts["waits"] += 1
    machine.step()
    wait_for_use(machine, barrier, int(use), place)
    if barrier.from_peers:
        raise BarrierMisuse(f"barrier_wait for {barrier.from_peers[-1]} at {barrier}, which is of another CTA: cluster_wait, at {at(place)}")


def wait_for_use(machine: Machine, barrier: Barrier, use: int, place: Place) -> None:
    """The parity decides on the device when the wait passes; the use number decides whether that is right."""
    role = machine.current
    needed, parity = use + 1 - barrier.ready, (use & 1) ^ barrier.ready
    while True:
        passes, reached = (barrier.completed & 1) != parity, barrier.completed >= needed
        if passes and not reached:
            raise BarrierMisuse(
                f"{role.name} passes {barrier} too early at {at(place)}\n  it names use {use}, which needs {needed} completion(s); "
                f"there are {barrier.completed}, whose parity is the same: the phase is off by one use"
            )
        if reached and not passes:
            raise BarrierMisuse(
                f"{role.name} is a full use behind at {at(place)}\n  it names use {use} of {barrier} ({needed} completion(s)); "
                f"there are already {barrier.completed}, so the parity wait would block or pass for the wrong use"
            )
        if passes:
            break
        barrier.waiters.append(role)
        machine.block(lambda: [f"waits for use {use} of {barrier} ({'READY' if barrier.ready else 'PENDING'})", barrier.state()], place)
    if needed > 0:
        join(role.clock, barrier.completed_clocks[needed - 1])
        if machine.trace:
            machine.trace.wait(role, barrier, needed, place)
