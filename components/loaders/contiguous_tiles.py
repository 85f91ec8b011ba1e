"""TMA loader of prefill over contiguous K and V: tiles of 128 (or 64) tokens of tensors [tokens, kv heads, head_dim] that all sequences share.

A sequence's keys start where its queries do (as many keys as queries).  A tile may reach into the next sequence: those keys are masked, and V's rows
of them are cleared.
"""

from __future__ import annotations

from math import prod

from attrs import frozen

from tle_attn.components.loaders.contiguous_tma import check_no_page
from tle_attn.components.loaders.paged_tiles import column_blocks, tile_functions
from tle_attn.dialect import copy, jit, load, static_range
from tle_attn.spec import Argument, Block, BoxDescriptor, Constant, Function, Problem


@frozen(kw_only=True)
class ContiguousTiles(Block):
    """One box [tokens, 128 B] for each 128-byte column block of a tile."""

    KIND = "loader"
    NAME = "contiguous_tiles"
    PAGED = False

    def check(self, problem: Problem) -> None:
        check_no_page(problem)

    def copies(self, problem: Problem) -> int:
        """Boxes of a tile: arrivals that complete a use of its barrier."""
        return column_blocks(problem)

    def box(self, problem: Problem) -> tuple[int, ...]:
        return (1, problem.prefill_keys, problem.value_tile_dim // column_blocks(problem))

    def box_bytes(self, problem: Problem) -> int:
        return prod(self.box(problem)) * problem.dtype.nbytes

    def rest_box(self, problem: Problem) -> tuple[int, ...]:
        """Box of the second tile of K: its rows are 128 bytes at most."""
        return (1, problem.prefill_keys, problem.head_tiles[1])

    def rest_copies(self, problem: Problem) -> int:
        """Boxes of the second tile of K."""
        return 1

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "TILE": Constant(problem.prefill_keys, "tokens of a key tile"),
            "COLUMN_BLOCKS": Constant(column_blocks(problem), "128-byte column blocks of a tile row"),
            "COPIES": Constant(self.copies(problem), "boxes of a tile"),
            "BOX_ROWS": Constant(problem.prefill_keys, "tokens of a TMA box"),
            "BOX_COLS": Constant(self.box(problem)[2], "head elements of a TMA box"),
            "BOX_BYTES": Constant(self.box_bytes(problem), "bytes of a TMA box"),
            "REST_COPIES": Constant(self.rest_copies(problem), "boxes of a second tile of K"),
            "REST_BOX_BYTES": Constant(prod(self.rest_box(problem)) * problem.dtype.nbytes, "bytes of one of them"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        box = BoxDescriptor(problem.dtype, self.box(problem))
        rest = BoxDescriptor(problem.dtype, self.rest_box(problem))
        return (Argument("k_desc", box, "K as (head, token, dim)"), Argument("v_desc", box, "V as (head, token, dim)"), Argument("k_rest_desc", rest, "K as (head, token, dim)"))

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return tile_functions(problem)


@jit
def key_source(args, seq):
    """Where a sequence's keys are: its first token."""
    return load(args.cu_seqlens_q + seq)


@jit
def load_tokens(desc, source, boxes, barrier, slot, tile, head):
    """Start the copies of one tile into ring slot `slot`."""
    for c in static_range(COLUMN_BLOCKS):
        copy(desc, boxes.slot(slot * COLUMN_BLOCKS + c), [1, BOX_ROWS, BOX_COLS], [head, source + tile * TILE, c * BOX_COLS], barrier=barrier)


@jit
def load_key_tile(args, source, boxes, barrier, slot, tile, kv_len, head):
    """K tile."""
    load_tokens(args.k_desc, source, boxes, barrier, slot, tile, head)


@jit
def load_rest_tile(args, source, boxes, barrier, slot, tile, kv_len, head):
    """The second K tile: a head's elements from HEAD_DIM on."""
    copy(args.k_rest_desc, boxes.slot(slot), [1, BOX_ROWS, REST_DIM], [head, source + tile * TILE, HEAD_DIM], barrier=barrier)


@jit
def load_value_tile(args, source, boxes, barrier, slot, tile, kv_len, head):
    """V tile."""
    load_tokens(args.v_desc, source, boxes, barrier, slot, tile, head)
