"""Mbarrier ring: S slots, each with a "full" barrier (completed by TMA bytes) and an "empty" barrier (completed by its readers).

K and V have rings of their own, so that a K slot is free as soon as the scores are done.  Uses are counted logically: tile i is use
i // S of slot i % S on both sides; parities never appear in the text.
"""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import optional

from tle_attn.dialect import barrier_arrive, barrier_wait, jit, static_range
from tle_attn.errors import SpecError
from tle_attn.spec import Block, Constant, Function, Problem
from tle_attn.spec.problem import at_least


@frozen(kw_only=True)
class MbarrierRing(Block):
    """Ring of `stages` K tiles and `stages` V tiles; left open, as many as fit beside the rest, up to RING_BYTES a multiprocessor.

    Source of the number: 64 KB in flight per SM saturate HBM on an H200; 3 stages x 2 CTAs of bf16 tiles hold 192 KB and hide the page-id latency.
    """

    KIND = "ring"
    NAME = "mbarrier"

    RING_BYTES = 192 << 10

    stages: int | None = field(default=None, validator=optional(at_least(1, "tiles in flight", 16)), metadata={"tune": (2, 3, 4, 5, 6, 8)})
    #: role arrivals that free a slot; the number of consumer roles, anything else breaks the protocol
    readers: int = field(default=1, validator=at_least(1, "consumer roles"), metadata={"testing": True})

    def check(self, problem: Problem) -> None:
        if self.stages is None:
            raise SpecError("this mainloop leaves the depth of its ring to the recipe", key="stages", allowed="an integer from 1 to 16", reason="tiles in flight")

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"STAGES": Constant(self.stages, "tiles in flight, K and V each"), "READERS": Constant(self.readers, "roles that free a slot")}

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("slot_of"), Function("use_of"), Function("acquire"), Function("wait_tile"), Function("wait_slot"), Function("release"))


@jit
def slot_of(i):
    """Ring slot of tile i."""
    return i % STAGES


@jit
def use_of(i):
    """How many times the slot of tile i was used before."""
    return i // STAGES


@jit
def acquire(empty, i):
    """Producer: wait until the slot of tile i is free."""
    barrier_wait(empty[i % STAGES], i // STAGES)


@jit
def wait_tile(full, i):
    """Consumer: wait until all boxes of tile i have landed."""
    for c in static_range(COPIES):
        barrier_wait(full[(i % STAGES) * COPIES + c], i // STAGES)


@jit
def wait_slot(full, i):
    """Consumer: wait for tile i where one barrier stands for all of it."""
    barrier_wait(full[i % STAGES], i // STAGES)


@jit
def release(empty, i):
    """Consumer: this role is done with the slot of tile i."""
    barrier_arrive(empty[i % STAGES])
