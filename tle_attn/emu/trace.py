"""A recorder of one launch: when each role works and waits, and when each shared slot is full, in nominal steps.

The emulation has no clock, and its schedule is drawn at random; a trace has a clock of its own, which gives the same picture for every schedule (of a
kernel whose CTAs take work from a queue: as long as they take the same work).  Each role carries its time along: an operation takes a step, a wait ends when what it waits for is complete.  Copies of a role arrive one after the other, as
from a memory that is shared by many; products of a role run one after the other.  The numbers below are of the right order against each other for a
kernel that is bound by memory, and nothing more: what can be read off is who waits for whom, not how many microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field, frozen

if TYPE_CHECKING:
    from .barriers import Barrier
    from .machine import CTA, Role
    from .named import NamedBarrier
    from .shared import Buffer
    from .source import Place

#: steps from the issue of a copy to its first byte, and bytes of a role's copies that arrive in a step
LATENCY, BYTES_PER_STEP = 24.0, 512.0
#: steps of a product, and of what a role computes in registers with a result that it has waited for
PRODUCT, ARITHMETIC = 4.0, 6.0


@frozen
class Span:
    """What a role did from `start` to `end`: "wait" (for `what`, a barrier) or "product" (of `what`, buffers)."""

    role: str
    kind: str
    start: float
    end: float
    what: str
    place: Place


@define
class Fill:
    """One filling of a shared slot: copies issued (or stored) from `start` on, all bytes there at `full`, read for the last time at `end`."""

    slot: str
    start: float
    full: float
    end: float
    was_read: bool = False


@define(eq=False)
class CtaTrace:
    """One CTA of a launch.

    Attributes:
        program: its place in the grid.
        roles: {role: (start, end)}, the CTA's own warps first.
        spans: waits and products, by role in the order of time.
        fills: of shared slots, in the order of issue.
    """

    program: tuple[int, int, int]
    roles: dict[str, tuple[float, float]] = field(factory=dict)
    spans: list[Span] = field(factory=list)
    fills: list[Fill] = field(factory=list)
    open: dict[str, Fill] = field(factory=dict)  #: the latest filling of each slot

    @property
    def end(self) -> float:
        return max((end for _, end in self.roles.values()), default=0.0)


@define(eq=False)
class Trace:
    """Give one to `emu.launch` and read `ctas` afterwards."""

    ctas: list[CtaTrace] = field(factory=list)
    _cta_of: dict[CTA, CtaTrace] = field(factory=dict, repr=False)
    _time: dict[Role, float] = field(factory=dict, repr=False)
    _complete: dict[tuple[Barrier, int], float] = field(factory=dict, repr=False)
    _rounds: dict[NamedBarrier, float] = field(factory=dict, repr=False)
    _memory_free: dict[Role, float] = field(factory=dict, repr=False)
    _products: dict[Role, list[float]] = field(factory=dict, repr=False)  #: ends of groups in flight

    # ---- roles
    def born(self, role: Role, parent: Role | None) -> None:
        """A role starts, at the time of the one that starts it."""
        if parent is None:
            self._cta_of[role.cta] = CtaTrace(role.cta.program)
            self.ctas.append(self._cta_of[role.cta])
        self._time[role] = self._time[parent] if parent else 0.0
        self._products[role] = []

    def step(self, role: Role) -> None:
        """An operation."""
        self._advance(role, self._time[role] + 1.0)

    def _advance(self, role: Role, time: float) -> None:
        roles = self._cta_of[role.cta].roles
        start, _ = roles.get(role.title, (self._time[role], 0.0))
        roles[role.title] = (start, time)
        self._time[role] = time

    def _wait(self, role: Role, until: float, what: str, place: Place) -> None:
        """The role goes on at `until`, or at once where that is past."""
        now = self._time[role]
        if until > now:
            self._cta_of[role.cta].spans.append(Span(role.title, "wait", now, until, what, place))
            self._advance(role, until)

    # ---- copies and barriers
    def copy(self, role: Role, buffer: Buffer, barrier: Barrier) -> None:
        """A copy was issued; its bytes belong to the barrier's current use."""
        cta, now = self._cta_of[role.cta], self._time[role]
        landed = self._memory_free[role] = max(now + LATENCY, self._memory_free.get(role, 0.0)) + buffer.nbytes / BYTES_PER_STEP
        self._completes(barrier, landed)
        self._fill(cta, buffer, now, landed)

    def _fill(self, cta: CtaTrace, buffer: Buffer, start: float, full: float) -> None:
        fill = cta.open.get(slot_of(buffer))
        if fill is None or fill.was_read:
            fill = cta.open[slot_of(buffer)] = Fill(slot_of(buffer), start, full, full)
            cta.fills.append(fill)
        else:  # a further box of the same tile
            fill.full = fill.end = max(fill.full, full)

    def arrive(self, role: Role, barrier: Barrier) -> None:
        """An arrival at the barrier's current use."""
        self._completes(barrier, self._time[role])

    def _completes(self, barrier: Barrier, time: float) -> None:
        use = (barrier, barrier.completed)
        self._complete[use] = max(self._complete.get(use, 0.0), time)

    def wait(self, role: Role, barrier: Barrier, completions: int, place: Place) -> None:
        """A wait for so many completed uses has passed."""
        self._wait(role, self._complete.get((barrier, completions - 1), 0.0), str(barrier), place)

    def come(self, role: Role, barrier: NamedBarrier) -> None:
        """A role comes to a round of a named barrier; one that does not wait goes on at once."""
        self._rounds[barrier] = max(self._rounds.get(barrier, 0.0), self._time[role])

    def meet(self, barrier: NamedBarrier, waiting: list[Role]) -> None:
        """A round of a named barrier is complete."""
        latest = self._rounds.pop(barrier)
        places = dict(barrier.arrived)
        for role in waiting:
            self._wait(role, latest, f"{barrier.name}[{barrier.slot}]", places[role])

    # ---- products and reads
    def product(self, role: Role, operands: list[Buffer], place: Place) -> None:
        """A wgmma was issued."""
        flying = self._products[role]
        start = max(self._time[role], flying[-1] if flying else 0.0)
        flying.append(start + PRODUCT)
        self._cta_of[role.cta].spans.append(Span(role.title, "product", start, start + PRODUCT, " x ".join(b.label for b in operands), place))
        for buffer in operands:
            self._read_until(role, buffer, start + PRODUCT)

    def retire(self, role: Role, groups: int, place: Place) -> None:
        """So many groups have been waited for; the role computes with what they gave."""
        flying = self._products[role]
        for end in flying[:groups]:
            self._wait(role, end, "its products", place)
        if groups:
            self._advance(role, self._time[role] + ARITHMETIC)
        del flying[:groups]

    def store(self, role: Role, buffer: Buffer) -> None:
        """Registers were stored to shared memory."""
        self._fill(self._cta_of[role.cta], buffer, self._time[role], self._time[role])

    def read(self, role: Role, buffer: Buffer) -> None:
        """Shared memory was read into registers."""
        self._read_until(role, buffer, self._time[role])

    def _read_until(self, role: Role, buffer: Buffer, time: float) -> None:
        fill = self._cta_of[role.cta].open.get(slot_of(buffer))
        if fill is not None:
            fill.end, fill.was_read = max(fill.end, time), True


def slot_of(buffer: Buffer) -> str:
    """The slot of a ring that a view lies in, or the allocation that is no ring; boxes of a tile have views of their own."""
    a = buffer.allocation
    if len(a.shape) < (2 if buffer.plain else 3) or buffer.nbytes == a.bytes.size:
        return a.name
    return f"{a.name}[{buffer.offset // (a.bytes.size // a.shape[0])}]"
