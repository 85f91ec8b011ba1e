"""Atomics and acquiring reads on global memory: how roles of different CTAs order their work."""

from tle_attn.emu.clocks import Clock, across_ctas, join
from tle_attn.emu.dtypes import I32
from tle_attn.emu.errors import BarrierMisuse, EmulationError, OutOfBounds
from tle_attn.emu.integers import Int32, checked
from tle_attn.emu.machine import Role, running
from tle_attn.emu.memory import GlobalTensor, Pointer, store
from tle_attn.emu.source import Place, at, where

SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")


class Word:
    """A 32-bit word used by atomics: what releases to it have published, and who polls it."""

    def __init__(self, tensor: GlobalTensor, offset: int):
        self.tensor, self.offset = tensor, offset
        self.clock: Clock = {}
        self.version = 0
        self.waiters: set[Role] = set()

    def __str__(self) -> str:
        return f"{self.tensor.name}[{self.offset}] (= {int(self.tensor.flat[self.offset])})"

    def changed(self) -> None:
        """Somebody wrote the word: whoever polls it looks again."""
        self.version += 1
        machine = running()
        for role in tuple(self.waiters):
            role.idle_looks = 0
            machine.unpark(role)


def _word(pointer: Pointer, what: str, place: Place) -> Word:
    if not isinstance(pointer, Pointer) or pointer.tensor.dtype is not I32:
        raise EmulationError(f"{what} takes a pointer to one int32, at {at(place)}")
    tensor, offset = pointer.tensor, pointer.offset
    if not 0 <= offset < tensor.size:
        raise OutOfBounds(f"{tensor.name}: element {offset} of {tensor.size} at {at(place)}")
    words = tensor.storage.words
    unit = int(tensor.first_unit + offset * tensor.units_per_element)
    if unit not in words:
        words[unit] = Word(tensor, offset)
    return words[unit]


def atomic_add(pointer: Pointer, value: int, sem: str = "acq_rel") -> Int32:
    machine, place = running(), where()
    if sem not in SEMANTICS:
        raise EmulationError(f"atomic_add with sem={sem!r}: one of {', '.join(SEMANTICS)}, at {at(place)}")
    if not isinstance(value, int):
        raise EmulationError(f"atomic_add of {type(value).__name__}: an integer scalar, at {at(place)}")
    word = _word(pointer, "atomic_add", place)
    machine.step()
    role, tensor = machine.current, word.tensor
    access = role.now(f"atomic_add ({sem})", place)
    access.atomic = True
    tensor.storage.write(tensor, tensor.units(word.offset), role.clock, access)
    old = int(tensor.flat[word.offset])
    tensor.flat[word.offset] = checked(old + int(value))
    if sem in ("acquire", "acq_rel"):
        join(role.clock, word.clock)
    if sem in ("release", "acq_rel"):
        join(word.clock, across_ctas(role.release()))
    word.changed()
    machine.step()
    return Int32(old)


def load_acquire(pointer: Pointer) -> Int32:
    """The word's value now; when this role has already seen it and done nothing since, the next value."""
    machine, place = running(), where()
    word = _word(pointer, "load_acquire", place)
    role, tensor = machine.current, word.tensor
    machine.counts["polls"] += 1
    machine.spin(place)
    seen = role.polled
    if seen.get((word, place)) == word.version:
        words = [polled for polled, _ in seen]
        for polled in words:
            polled.waiters.add(role)
        machine.parked[role] = words
        machine.block(lambda: ["polls " + " and ".join(sorted({str(polled) for polled in words}))], place)
    access = role.now("load_acquire", place)
    access.atomic = True
    tensor.storage.check_written(tensor, tensor.units(word.offset), role.clock, access)
    seen[word, place] = word.version
    join(role.clock, word.clock)
    return Int32(int(tensor.flat[word.offset]))


def arrive_release(pointer: Pointer) -> None:
    atomic_add(pointer, 1, "release")


def wait_at_least(pointer: Pointer, value: int) -> None:
    while load_acquire(pointer) < value:
        pass


class Ticket:
    """A place in a queue.  One thread of the role knows it, so the text can only hand it to `reset_after`."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number


def take_ticket(pointer: Pointer) -> Ticket:
    """Relaxed: coherence of the one word orders the last ticket behind all others, and nothing else is ordered by it."""
    return Ticket(int(atomic_add(pointer, 1, "relaxed")))


def reset_after(pointer: Pointer, ticket: Ticket, last: int) -> None:
    if not isinstance(ticket, Ticket):
        raise EmulationError(f"reset_after with {type(ticket).__name__}: what take_ticket returned, at {at(where())}")
    if ticket.number > last:
        raise BarrierMisuse(f"ticket {ticket.number} where {int(last)} is the last: more tickets were taken than reset_after counts, at {at(where())}")
    if ticket.number == last:
        store(pointer, 0)
        store(pointer + 1, 0)
