"""The emulated barriers of ``tle.gpu``: one allocation serves as mbarriers (with a phase) or as named barriers (without).

FlagTree decides by the calls, so an array can become either here, and each slot settles at its first use.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field, frozen

from tle_attn.emu import ops
from tle_attn.emu.barriers import Barriers
from tle_attn.emu.machine import running
from tle_attn.emu.named import NamedBarriers
from tle_attn.emu.tiles import Tile
from tle_attn.emu.tle_target.errors import is_static, require

PENDING, READY = "pending", "ready"

HARDWARE_IDS = 16  #: named barriers of a CTA
COMPILER_IDS = 2  #: of those: the default partition's barrier and the dispatch loop; each worker partition takes one more


@define(eq=False)
class BarrierArray:
    """A ``tle.gpu.barrier`` array."""

    mbarriers: Barriers
    ready: bool
    expect_bytes: int | None
    arrive_count: int
    named: NamedBarriers | None = None
    backends: dict[int, str] = field(factory=dict)  #: slot -> how it is used

    def __len__(self) -> int:
        return len(self.mbarriers)

    def __getitem__(self, i: int) -> BarrierSlot:
        require(isinstance(i, int) and type(i) is not bool, f"a barrier index must be a scalar integer, got {type(i).__name__}")
        require(not is_static(i) or 0 <= i < len(self), f"barrier index {i} of {len(self)}")
        return BarrierSlot(self, i)

    def settle(self, slot: int, backend: str) -> None:
        """A slot is used one way only."""
        require(self.backends.setdefault(slot, backend) == backend, f"cannot mix named and mbarrier backends for the same barrier slot {self.mbarriers[slot]}")


@frozen(eq=False)
class BarrierSlot:
    """One barrier of an array."""

    array: BarrierArray
    index: int

    def __getitem__(self, i: Any) -> None:
        require(False, "a barrier slot cannot be indexed again")

    def mbarrier(self) -> Any:
        """The emulation's mbarrier."""
        self.array.settle(int(self.index), "mbarrier")
        return self.array.mbarriers[self.index]

    def named_barrier(self) -> Any:
        """The emulation's named barrier; hardware ids are given at the first use."""
        array = self.array
        require(is_static(self.index), "a named barrier needs a compile-time index (or a phase, to be an mbarrier)")
        array.settle(self.index, "named")
        if array.named is None:
            first = _free_ids(len(array))
            array.named = ops.alloc_named(first, len(array), array.arrive_count)
            for named, mbarrier in zip(array.named.slots, array.mbarriers.slots, strict=True):
                named.name = mbarrier.name
        return array.named[self.index]


def _free_ids(n: int) -> int:
    """The first of `n` hardware ids of the running CTA, taken from the top so that the compiler's own stay free."""
    role = running().current
    assert role is not None and role.cta.main is not None
    cta, workers = role.cta, role.cta.main.children
    first = min(cta.named_ids, default=HARDWARE_IDS) - n
    taken = COMPILER_IDS + len(workers)
    require(first >= taken, f"out of named barriers: the compiler keeps {taken} of {HARDWARE_IDS}, {len(cta.named_ids)} are in use, {n} more are needed")
    return first


def alloc_barriers(num_barriers, arrive_count=1, init=PENDING, expect_bytes=None):
    require(is_static(num_barriers) and num_barriers > 0, f"alloc_barriers: num_barriers must be a compile-time integer > 0, got {num_barriers!r}")
    require(is_static(arrive_count) and arrive_count > 0, f"alloc_barriers: arrive_count must be a compile-time integer > 0, got {arrive_count!r}")
    require(init in (PENDING, READY), f"alloc_barriers: init must be tle.gpu.PENDING or tle.gpu.READY, got {init!r}")
    require(
        expect_bytes is None or (is_static(expect_bytes) and expect_bytes > 0),
        f"alloc_barriers: expect_bytes must be None or a compile-time integer > 0, got {expect_bytes!r}",
    )
    ready = init == READY
    mbarriers = ops.alloc_barriers(num_barriers, arrive_count, ops.READY if ready else ops.PENDING, expect_bytes or 0)
    return BarrierArray(mbarriers, ready, expect_bytes, arrive_count)


def alloc_barrier(arrive_count=1, init=PENDING, expect_bytes=None):
    return alloc_barriers(1, arrive_count, init, expect_bytes)


def slot_of(barrier: Any, what: str) -> BarrierSlot:
    """One slot: an array that is not indexed stands for its first."""
    if isinstance(barrier, BarrierArray):
        return barrier[0]
    require(isinstance(barrier, BarrierSlot), f"{what} expects a tle.gpu barrier, got {type(barrier).__name__}")
    return barrier


def _phase(phase: Any, what: str) -> int:
    require(not (isinstance(phase, Tile) and phase.shape), f"{what}: phaseIdx must be a scalar, not a tensor of shape {getattr(phase, 'shape', None)}")
    require(isinstance(phase, int) and type(phase) is not bool, f"{what}: phaseIdx must be an integer, got {type(phase).__name__}")
    return phase


def _named(slot: BarrierSlot, what: str) -> Any:
    require(slot.array.expect_bytes is None, f"{what} on a barrier with expect_bytes requires phaseIdx")
    require(not slot.array.ready, f"{what} without phaseIdx selects a named barrier, which does not support READY")
    return slot.named_barrier()


def barrier_wait(bar, phaseIdx=None):
    slot = slot_of(bar, "barrier_wait")
    if phaseIdx is None:
        ops.named_wait(_named(slot, "barrier_wait"))
    else:
        ops.barrier_wait(slot.mbarrier(), _phase(phaseIdx, "barrier_wait"))


def barrier_arrive(bar, arrive_count=1, phaseIdx=None):
    slot = slot_of(bar, "barrier_arrive")
    require(is_static(arrive_count) and arrive_count > 0, f"barrier_arrive: arrive_count must be a compile-time integer > 0, got {arrive_count!r}")
    if phaseIdx is None:
        require(arrive_count == 1, "barrier_arrive on a named barrier: arrive_count must be 1")
        ops.named_arrive(_named(slot, "barrier_arrive"))
        return
    _phase(phaseIdx, "barrier_arrive")
    for _ in range(arrive_count):
        ops.barrier_arrive(slot.mbarrier())
