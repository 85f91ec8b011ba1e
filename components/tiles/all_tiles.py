"""Every key tile of the causal range, latest first."""

from __future__ import annotations

from attrs import frozen

from tle_attn.dialect import jit, maximum
from tle_attn.spec import Block, Constant, Function, Problem


@frozen(kw_only=True)
class AllTiles(Block):
    """Dense attention: tiles last - 1 down to first."""

    KIND = "tiles"
    NAME = "all"
    BLOCK_MASK = False

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"BLOCK_MASK": Constant(False, "key tiles are chosen by a mask")}

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("survey"), Function("open_tiles"), Function("next_tile"))


@jit
def survey(args, seq, head, row0, first, last):
    """(tiles, the first one, the second one)."""
    return maximum(last - first, 0), last - 1, last - 2


@jit
def open_tiles(args, seq, head, row0, last):
    """State of a walk: where it is."""
    return 0, last


@jit
def next_tile(args, seq, head, row0, last, kept, at):
    """The next tile, and the state behind it."""
    return at - 1, kept, at - 1
