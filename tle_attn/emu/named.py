"""Named barriers (bar.sync / bar.arrive): rounds that are complete when enough threads have come."""

from tle_attn.emu.clocks import Clock, join
from tle_attn.emu.dtypes import F32
from tle_attn.emu.errors import BarrierMisuse, EmulationError, OutOfBounds
from tle_attn.emu.machine import Role, running
from tle_attn.emu.source import Place, assigned_name, at, where
from tle_attn.emu.tiles import Tile

IDS = range(1, 16)  # 0 is the barrier of the CTA


class NamedBarrier:
    """One hardware barrier."""

    def __init__(self, name: str, slot: int, number: int, threads: int, place: Place):
        self.name, self.slot, self.number, self.threads, self.place = name, slot, number, threads, place
        self.start_round()

    def start_round(self) -> None:
        self.arrived: list[tuple[Role, Place]] = []
        self.waiters: list[Role] = []
        self.clock: Clock = {}

    def __str__(self) -> str:
        return f"{self.name}[{self.slot}] (barrier {self.number}, {self.threads} threads)"

    def state(self) -> str:
        present = sum(role.threads for role, _ in self.arrived)
        return f"{self}: {present} threads are there: " + ", ".join(f"{role.threads} of {role.name} at line {place[1]}" for role, place in self.arrived)

    def arrive(self, role: Role, place: Place) -> bool:
        """The role's threads come; True when that completes the round."""
        if any(other is role for other, _ in self.arrived):
            raise BarrierMisuse(f"{role.name} comes twice to one round of {self}: its threads would count for others\n  again at {at(place)}\n  {self.state()}")
        self.arrived.append((role, place))
        if running().trace:
            running().trace.come(role, self)
        join(self.clock, role.release())
        present = sum(other.threads for other, _ in self.arrived)
        if present > self.threads:
            raise BarrierMisuse(f"{present} threads come to {self} at {at(place)}\n  {self.state()}\n  allocated at {at(self.place)}")
        return present == self.threads


class NamedBarriers:
    """An array of named barriers; the index is a constant."""

    def __init__(self, slots: list[NamedBarrier]):
        self.slots = slots

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, i: int) -> NamedBarrier:
        if not 0 <= i < len(self.slots):
            raise OutOfBounds(f"named barrier {self.slots[0].name}[{i}] of {len(self.slots)} at {at(where())}")
        return self.slots[i]


def alloc_named(first_id: int, n: int, threads: int) -> NamedBarriers:
    place = where()
    cta = running().current.cta
    ids = set(range(first_id, first_id + n))
    if n <= 0 or not ids <= set(IDS):
        raise EmulationError(f"named barriers {first_id} .. {first_id + n - 1}: ids 1 .. 15 exist, at {at(place)}")
    if ids & cta.named_ids:
        raise BarrierMisuse(f"named barrier ids {sorted(ids & cta.named_ids)} are already taken, at {at(place)}")
    if threads <= 0 or threads % 32:
        raise EmulationError(f"a named barrier of {threads} threads: a positive multiple of 32, at {at(place)}")
    cta.named_ids |= ids
    name = assigned_name(place, "named")
    return NamedBarriers([NamedBarrier(name, i, first_id + i, threads, place) for i in range(n)])


def _one(barrier: NamedBarrier, what: str, place: Place) -> None:
    if not isinstance(barrier, NamedBarrier):
        raise BarrierMisuse(f"{what} on {type(barrier).__name__}: one named barrier, named[i], at {at(place)}")


def named_wait(barrier: NamedBarrier) -> None:
    machine, place = running(), where()
    _one(barrier, "named_wait", place)
    machine.step()
    role = machine.current
    if barrier.arrive(role, place):
        _complete(barrier, [role])
        join(role.clock, barrier.clock)
        barrier.start_round()
    else:
        barrier.waiters.append(role)
        machine.block(lambda: [f"waits at {barrier}", barrier.state()], place)
    machine.step()


def named_wait_for(barrier: NamedBarrier, vector: Tile) -> Tile:
    if vector.dtype is not F32 or vector.shape != (64,) or running().current.threads != 128:
        raise EmulationError(f"named_wait_for with {vector!r} in {running().current.name}: the 64 fp32 row values of a warpgroup's accumulator, at {at(where())}")
    named_wait(barrier)
    return vector


def named_arrive(barrier: NamedBarrier) -> None:
    machine, place = running(), where()
    _one(barrier, "named_arrive", place)
    if barrier.arrive(machine.current, place):
        if len(barrier.arrived) == 1:
            raise BarrierMisuse(
                f"{machine.current.name} completes {barrier} alone, so that it orders nothing, at {at(place)}\n"
                f"  count the arriving and the waiting threads; allocated at {at(barrier.place)}"
            )
        _complete(barrier, [])
        barrier.start_round()
    machine.step()


def _complete(barrier: NamedBarrier, last: list[Role]) -> None:
    """Everybody who waits (the last to come, if it does) goes on and knows what all who came knew."""
    machine = running()
    if machine.trace:
        machine.trace.meet(barrier, [*barrier.waiters, *last])
    for waiter in barrier.waiters:
        join(waiter.clock, barrier.clock)
    machine.ready += barrier.waiters
