"""Order of accesses to global memory, tracked per element of the storages that a kernel writes.

Until the first write of a storage its reads are only listed, so that inputs cost next to nothing.  A storage is tracked in units of the
smallest element type that the launch sees it through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tle_attn.emu.clocks import Access, Clock
from tle_attn.emu.errors import Race, Unwritten

if TYPE_CHECKING:
    from tle_attn.emu.memory import GlobalTensor

READS_REMEMBERED = 1 << 16  # reads listed before the first write of a storage

Units = np.ndarray | np.integer  #: indices of tracked units


class Storage:
    """The memory of one torch storage, as this launch sees it."""

    def __init__(self, nbytes: int):
        self.nbytes = nbytes
        self.unit = 8
        self.accesses: list[Access | None] = [None]  # by number; 0 = nothing in this launch
        self.writes: np.ndarray | None = None  # per unit: number of the last write
        self.reads: np.ndarray | None = None  # per unit: number of the set of reads since
        self.read_sets: list[frozenset[int]] = [frozenset()]
        self.read_set_numbers: dict[frozenset[int], int] = {frozenset(): 0}
        self.early_reads: deque = deque(maxlen=READS_REMEMBERED)
        self.words: dict = {}  # unit -> the word's state as an atomic

    def track(self) -> None:
        """From now on every unit has a last write and the reads since."""
        if self.writes is not None:
            return
        count = -(-self.nbytes // self.unit)
        self.writes, self.reads = np.zeros(count, np.int32), np.zeros(count, np.int32)
        for access, units in self.early_reads:
            self._note_read(access, units() if callable(units) else units, {})
        self.early_reads.clear()

    def number(self, access: Access) -> int:
        self.accesses.append(access)
        return len(self.accesses) - 1

    # ---------------------------------------------------------------- checks
    def read(self, tensor: GlobalTensor, units: Units | Callable[[], Units], clock: Clock, access: Access) -> None:
        """`access` reads `units`, which may be given as a function that computes them when they are needed."""
        if self.writes is None:
            self.early_reads.append((access, units))
            return
        units = units() if callable(units) else units
        self.check_written(tensor, units, clock, access)
        self._note_read(access, units, clock)

    def check_written(self, tensor: GlobalTensor, units: Units, clock: Clock, access: Access) -> None:
        """The reader `access` must come after the last writes of `units`."""
        if self.writes is None:
            return
        for write in _distinct(self.writes[units]):
            if write:
                self._ordered(tensor, self.accesses[write], clock, access)
            elif tensor.workspace:
                raise Unwritten(
                    f"{access} reads {tensor.name}{self._first(tensor, units, write)}, a workspace element that nothing has written, at {access.line}"
                )

    def write(self, tensor: GlobalTensor, units: Units, clock: Clock, access: Access) -> None:
        """`access` writes `units`."""
        self.track()
        for write in _distinct(self.writes[units]):
            if write:
                self._ordered(tensor, self.accesses[write], clock, access)
        for number in _distinct(self.reads[units]):
            for read in self.read_sets[number]:
                read = self.accesses[read]
                if not read.known_to(clock):
                    raise Race(f"{access} overwrites {tensor.name} while nothing orders it after {read}\n  write at {access.line}\n  read  at {read.line}")
        self.reads[units] = 0
        self.writes[units] = self.number(access)

    def _ordered(self, tensor: GlobalTensor, earlier: Access, clock: Clock, access: Access) -> None:
        if earlier.atomic and access.atomic or earlier.known_to(clock):
            return
        kind = "reads" if "load" in access.verb else "overwrites"
        raise Race(
            f"{access} {kind} {tensor.name} without any order after {earlier}: no release and acquire lies between\n"
            f"  access at {access.line}\n  earlier write at {earlier.line}"
        )

    def _note_read(self, access: Access, units: Units, clock: Clock) -> None:
        number = self.number(access)
        previous = self.reads[units]
        distinct = _distinct(previous)
        merged = [self._with_read(old, number, clock) for old in distinct]
        self.reads[units] = merged[0] if len(merged) == 1 else np.asarray(merged, np.int32)[np.searchsorted(distinct, previous)]

    def _with_read(self, old: int, number: int, clock: Clock) -> int:
        """The set `old` plus one read; reads that the new one comes after need not be kept."""
        component = self.accesses[number].component
        kept = (read for read in self.read_sets[old] if self.accesses[read].component != component and not self.accesses[read].known_to(clock))
        reads = frozenset((*kept, number))
        if reads not in self.read_set_numbers:
            self.read_set_numbers[reads] = len(self.read_sets)
            self.read_sets.append(reads)
        return self.read_set_numbers[reads]

    def _first(self, tensor: GlobalTensor, units: Units, write: int) -> str:
        """The first element among `units` with that last write, as an index into the tensor."""
        units = np.atleast_1d(units)
        unit = units[self.writes[units] == write].min()
        return f"[{(unit - tensor.first_unit) // tensor.units_per_element}]"


def _distinct(numbers: Units) -> list[int]:
    """The different values in an array (nearly always one) or a scalar."""
    if numbers.ndim == 0:
        return [int(numbers)]
    if not numbers.size:
        return []
    first = numbers.flat[0]
    return [int(first)] if (numbers == first).all() else np.unique(numbers).tolist()
