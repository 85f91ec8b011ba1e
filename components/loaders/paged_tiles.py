"""Paged projected-TMA loader of prefill: the pages of a tile of 128 (or 64) tokens land as rows of one [tokens, head_dim] tile and complete one mbarrier together.

The cache is described once, as a rank-4 tensor (page, head, token, dim); NHD and HND differ in strides alone.  Pages past the end of the sequence have
id -1: TMA fills them with zeros and still counts their bytes.
"""

from __future__ import annotations

from math import prod

from attrs import frozen

from tle_attn.dialect import as_int64, copy, jit, load, static_range
from tle_attn.spec import Argument, Block, BoxDescriptor, Constant, Function, Port, Problem
from tle_attn.spec.types import Place

SWIZZLE_BYTES = 128


def column_blocks(problem: Problem) -> int:
    """128-byte column blocks of a tile row, of V and of the first tile of K."""
    return max(1, problem.value_tile_dim * problem.dtype.nbytes // SWIZZLE_BYTES)


def tile_functions(problem: Problem) -> tuple[Function, ...]:
    """What a prefill loader gives its mainloop; load_rest_tile where a head of K is two tiles."""
    first, rest = problem.head_tiles
    loads = (("load_key_tile", first), ("load_value_tile", problem.value_tile_dim), ("load_rest_tile", rest))
    ports = {name: Port("ring", problem.dtype, ("key", "dim"), (problem.prefill_keys, columns), Place.SHARED, "swizzled", "dim") for name, columns in loads if columns}
    return (Function("key_source"), *(Function(name, (), (port,)) for name, port in ports.items()))


@frozen(kw_only=True)
class PagedTiles(Block):
    """One box [page, 128 B] for each page and 128-byte column block of a tile: the largest whose rows stay in one swizzle atom.  Of a page larger than a tile, half."""

    KIND = "loader"
    NAME = "paged_tiles"
    PAGED = True

    def pages(self, problem: Problem) -> int:
        """Pages that make up a tile."""
        return max(1, problem.prefill_keys // problem.page)

    def copies(self, problem: Problem) -> int:
        """Boxes of a tile: arrivals that complete a use of its barrier."""
        return self.pages(problem) * column_blocks(problem)

    def box(self, problem: Problem) -> tuple[int, ...]:
        return (1, 1, problem.prefill_keys // self.pages(problem), problem.value_tile_dim // column_blocks(problem))

    def box_bytes(self, problem: Problem) -> int:
        return prod(self.box(problem)) * problem.dtype.nbytes

    def rest_box(self, problem: Problem) -> tuple[int, ...]:
        """Box of the second tile of K, a page of it: its rows are 128 bytes at most."""
        return (1, 1, problem.prefill_keys // self.pages(problem), problem.head_tiles[1])

    def rest_copies(self, problem: Problem) -> int:
        """Boxes of the second tile of K."""
        return self.pages(problem)

    def constants(self, problem: Problem) -> dict[str, Constant]:
        _, _, rows, cols = self.box(problem)
        return {
            "TILE": Constant(problem.prefill_keys, "tokens of a key tile"),
            "PAGE": Constant(problem.page, "tokens of a cache page"),
            "TILE_PAGES": Constant(self.pages(problem), "pages that make up a tile"),
            "PAGE_TILES": Constant(max(1, problem.page // problem.prefill_keys), "tiles in a page"),
            "COLUMN_BLOCKS": Constant(column_blocks(problem), "128-byte column blocks of a tile row"),
            "COPIES": Constant(self.copies(problem), "boxes of a tile"),
            "BOX_ROWS": Constant(rows, "tokens of a TMA box"),
            "BOX_COLS": Constant(cols, "head elements of a TMA box"),
            "BOX_BYTES": Constant(self.box_bytes(problem), "bytes of a TMA box"),
            "REST_COPIES": Constant(self.rest_copies(problem), "boxes of a second tile of K"),
            "REST_BOX_BYTES": Constant(prod(self.rest_box(problem)) * problem.dtype.nbytes, "bytes of one of them"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        box = BoxDescriptor(problem.dtype, self.box(problem))
        return (
            Argument("k_desc", box, "K cache as (page, head, token, dim)"),
            Argument("v_desc", box, "V cache as (page, head, token, dim)"),
            Argument("k_rest_desc", BoxDescriptor(problem.dtype, self.rest_box(problem)), "K cache as (page, head, token, dim)"),
            Argument("block_ids", "*i32", "page ids [batch, table width]; entries past a sequence's last page are not read"),
            Argument("block_ids_stride", "i64", "elements from one sequence's page ids to the next"),
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return tile_functions(problem)


@jit
def key_source(args, seq):
    """Where a sequence's keys are: its row of page ids."""
    return args.block_ids + as_int64(seq) * args.block_ids_stride


@jit
def box_place(source, tile, j, kv_len):
    """Page id of the tile's j-th box, -1 past the sequence's end, and the box's first token in the page."""
    page = tile // PAGE_TILES if PAGE_TILES > 1 else tile * TILE_PAGES + j
    return load(source + page, mask=page * PAGE < kv_len, other=-1), tile % PAGE_TILES * TILE if PAGE_TILES > 1 else 0


@jit
def load_pages(desc, source, boxes, barrier, slot, tile, kv_len, head):
    """Start the copies of one tile into ring slot `slot`; boxes: the ring seen as a ring of boxes."""
    for j in static_range(TILE_PAGES):
        page, token = box_place(source, tile, j, kv_len)
        for c in static_range(COLUMN_BLOCKS):
            copy(desc, boxes.slot((slot * COLUMN_BLOCKS + c) * TILE_PAGES + j), [1, 1, BOX_ROWS, BOX_COLS], [page, head, token, c * BOX_COLS], barrier=barrier)


@jit
def load_key_tile(args, source, boxes, barrier, slot, tile, kv_len, head):
    """K tile."""
    load_pages(args.k_desc, source, boxes, barrier, slot, tile, kv_len, head)


@jit
def load_rest_tile(args, source, boxes, barrier, slot, tile, kv_len, head):
    """The second K tile: a head's elements from HEAD_DIM on."""
    for j in static_range(TILE_PAGES):
        page, token = box_place(source, tile, j, kv_len)
        copy(args.k_rest_desc, boxes.slot(slot * TILE_PAGES + j), [1, 1, BOX_ROWS, REST_DIM], [page, head, token, HEAD_DIM], barrier=barrier)


@jit
def load_value_tile(args, source, boxes, barrier, slot, tile, kv_len, head):
    """V tile."""
    load_pages(args.v_desc, source, boxes, barrier, slot, tile, kv_len, head)
