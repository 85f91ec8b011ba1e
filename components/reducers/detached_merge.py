"""Detached merge: the attention kernel leaves partial sums in a workspace and waits for nobody; a second small kernel, launched early, merges them.

No counters and no polling: the second kernel is a programmatic dependent launch, whose CTAs start while the attention kernel's last ones are still at work and
wait, in hardware, for its end.  Its grid is that of the attention kernel, so that CTA j reads task j and knows what was split, into how many parts, and where
they lie.  Up to a few parts the CTA of a sequence's first part merges all of them; above that the CTAs of its parts merge a slice each.
Sequences that are one task were written by the attention kernel.
"""

from __future__ import annotations

from attrs import field, frozen

from tle_attn.components.reducers.split_merge import finish, merge_all, merge_slice, partial_arguments, partial_constants  # noqa: F401  (the block's device text)
from tle_attn.dialect import grid_wait, jit
from tle_attn.spec import Argument, Block, Constant, Function, Problem
from tle_attn.spec.problem import at_least


@frozen(kw_only=True)
class DetachedMerge(Block):
    """A kernel of its own, one CTA for each task.

    Attributes:
        slice_above: parts above which each part's CTA merges a slice (0: always); up to as many one CTA merges all.  Default: that of `split_merge`.
    """

    KIND = "reduce"
    NAME = "detached_merge"
    ENTRIES = ("merge_partials",)
    DEPENDENTS = ENTRIES
    HELPERS = False
    #: nobody waits for another CTA
    poll_above = POLL_ABOVE = 0

    slice_above: int = field(default=8, validator=at_least(0, "number of parts above which the CTAs of a sequence's parts merge a slice each"), metadata={"tune": (0, 4, 8)})

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            **partial_constants(problem),  # as split_merge, so that both give the same bits
            "DETACHED": Constant(True, "partial sums are merged by a kernel of its own"),
            "SLICE_ABOVE": Constant(self.slice_above, "parts above which the CTAs of a sequence's parts merge a slice each"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return partial_arguments()

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("finish"), Function("merge_partials"))


@jit
def merge_partials(args):
    """Merge kernel: the CTAs of a split sequence's tasks write its rows; those of other tasks have nothing to do."""
    grid_wait()
    seq, head, first, count, kv_len, slot, first_slot, splits, flags = task(args)
    if slot >= 0:
        unit = value_unit(args, 1.0, head)
        if splits <= SLICE_ABOVE:
            if slot == first_slot:
                merge_all(args, unit, seq, head, first_slot, splits)
        else:
            for block in range(slot - first_slot, ROWS * (VALUE_DIM // SLICE), splits):
                merge_slice(args, unit, seq, head, first_slot, splits, block // (VALUE_DIM // SLICE), block % (VALUE_DIM // SLICE))
