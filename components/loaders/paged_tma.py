"""Paged projected-TMA loader: one page box [1, 1, page, head_dim] lands as rows of a [64 tokens, head_dim] tile.

The cache is described once, as a rank-4 tensor (page, head, token, dim); NHD and HND differ in strides alone.  A tile is one page of 64,
half of a page of 128, or several pages of 16 or 32, each completing its own mbarrier.  Pages past the end of the sequence have id -1: TMA
fills them with zeros and still counts their bytes.  Page ids are read before the wait for the slot, so that the dependent load is hidden.
"""

from __future__ import annotations

from attrs import field, frozen

from tle_attn.dialect import constexpr, copy, jit, load, static_range
from tle_attn.spec import Argument, Block, BoxDescriptor, Constant, Function, Port, Problem
from tle_attn.spec.types import DType, Place

TILE = 64
SWIZZLE_BYTES = 128


@frozen(kw_only=True)
class PagedTma(Block):
    """Paged TMA loader.

    Source of the numbers: a [page, 128 B] column block is the largest box whose rows stay in one 128-byte swizzle atom; pages shorter than
    the tile therefore need one box per page and column block (research on sm_90a tile layouts, `docs/how-it-works.md`).
    """

    KIND = "loader"
    NAME = "paged_tma"

    #: bytes that one use of a full barrier is told to expect, as a multiple of what a box brings; anything but 1 breaks the protocol
    expect_scale: float = field(default=1.0, metadata={"testing": True})

    def pages(self, problem: Problem) -> int:
        """Pages that make up a tile."""
        return max(1, TILE // problem.page)

    def column_blocks(self, problem: Problem) -> int:
        """128-byte column blocks of a tile row."""
        return max(1, problem.head_dim * problem.dtype.nbytes // SWIZZLE_BYTES)

    def copies(self, problem: Problem) -> int:
        """Boxes, and so full barriers, of one tile."""
        return 1 if self.pages(problem) == 1 else self.pages(problem) * self.column_blocks(problem)

    def box(self, problem: Problem) -> tuple[int, ...]:
        if self.pages(problem) == 1:
            return (1, 1, TILE, problem.head_dim)
        return (1, 1, problem.page, problem.head_dim // self.column_blocks(problem))

    def box_bytes(self, problem: Problem) -> int:
        _, _, rows, cols = self.box(problem)
        return rows * cols * problem.dtype.nbytes

    def constants(self, problem: Problem) -> dict[str, Constant]:
        _, _, rows, cols = self.box(problem)
        return {
            "TILE": Constant(TILE, "tokens of a key tile"),
            "PAGE": Constant(problem.page, "tokens of a cache page"),
            "TILE_PAGES": Constant(self.pages(problem), "pages that make up a tile"),
            "PAGE_TILES": Constant(max(1, problem.page // TILE), "tiles in a page"),
            "COLUMN_BLOCKS": Constant(self.column_blocks(problem), "128-byte column blocks of a tile row"),
            "COPIES": Constant(self.copies(problem), "boxes (and full barriers) of a tile"),
            "BOX_ROWS": Constant(rows, "tokens of a TMA box"),
            "BOX_COLS": Constant(cols, "head elements of a TMA box"),
            "BOX_BYTES": Constant(int(self.box_bytes(problem) * self.expect_scale), "bytes of a TMA box"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        box = BoxDescriptor(problem.dtype, self.box(problem))
        return (
            Argument("k_desc", box, "K cache as (page, head, token, dim)"),
            Argument("v_desc", box, "V cache as (page, head, token, dim)"),
            Argument("block_ids", "*i32", "page ids [batch, table width]; entries past a sequence's last page are not read"),
            Argument("block_ids_stride", "i64", "elements from one sequence's page ids to the next"),
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        tile = Port("ring", problem.dtype, ("key", "dim"), (TILE, problem.head_dim), Place.SHARED, "swizzled", "dim")
        return (Function("tile_pages", (), (Port("pages", DType.I32, ("page",), (self.pages(problem),)),)), Function("load_tile", (), (tile,)))


@jit
def tile_pages(args, page_row, tile, kv_len):
    """Page ids of a key tile, -1 past the end of the sequence; page_row: pointer to the sequence's page ids."""
    ids = ()
    for j in static_range(TILE_PAGES):
        page = tile * TILE_PAGES + j
        if TILE_PAGES == 1:
            page = tile // PAGE_TILES
        ids = ids + (load(page_row + page, mask=page * PAGE < kv_len, other=-1),)
    return ids


@jit
def load_tile(desc, boxes, full, slot, ids, tile, head):
    """Start the copies of one tile into ring slot `slot`; boxes: the ring seen as a ring of boxes."""
    if TILE_PAGES == 1:
        copy(desc, boxes.slot(slot), [1, 1, BOX_ROWS, BOX_COLS], [ids[0], head, (tile % PAGE_TILES) * TILE, 0], barrier=full[slot])
    else:
        for c in static_range(COLUMN_BLOCKS):
            for j in static_range(TILE_PAGES):
                box = (slot * COLUMN_BLOCKS + c) * TILE_PAGES + j
                copy(desc, boxes.slot(box), [1, 1, BOX_ROWS, BOX_COLS], [ids[j], head, 0, c * BOX_COLS], barrier=full[box])
