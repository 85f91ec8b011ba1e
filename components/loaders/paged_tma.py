"""Paged projected-TMA loader: one page box [1, 1, page, head_dim] lands as rows of a [64 tokens, head_dim] tile.

The cache is described once, as a rank-4 tensor (page, head, token, dim); NHD and HND differ in strides alone.  A tile is one page of 64,
half of a page of 128, or several pages of 16 or 32, each completing its own mbarrier.  Pages past the end of the sequence have id -1: TMA
fills them with zeros and still counts their bytes.  Page ids are read 32 at a time, one a lane of the producer warp, a block ahead: at the start
of a task all slots of the ring are filled behind one dependent load (reading them one by one costs 2 us of an H200's decode step).
"""

from __future__ import annotations

from attrs import field, frozen

from tle_attn.components.loaders.paged_tiles import key_source  # noqa: F401  (the block's device text)
from tle_attn.dialect import copy, jit, load, reduce_max, smem_load, static_range, vec_index, where
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, BoxDescriptor, Constant, Function, Port, Problem
from tle_attn.spec.tasks import RECORD_PAGES
from tle_attn.spec.types import DType, Place

TILE = 64
SWIZZLE_BYTES = 128
PAGE_BLOCK = RECORD_PAGES


@frozen(kw_only=True)
class PagedTma(Block):
    """Paged TMA loader.

    Source of the numbers: a [page, 128 B] column block is the largest box whose rows stay in one 128-byte swizzle atom; pages shorter than
    the tile therefore need one box per page and column block (research on sm_90a tile layouts, `docs/how-it-works.md`).
    """

    KIND = "loader"
    NAME = "paged_tma"
    PAGED = True

    #: let the part of K and V that the L2 cache cannot keep leave it first; the task map says how much.  Left open: with a task map
    evict_first: bool | None = field(default=None, metadata={"tune": (True, False)})
    #: bytes that one use of a full barrier is told to expect, as a multiple of what a box brings; anything but 1 breaks the protocol
    expect_scale: float = field(default=1.0, metadata={"testing": True})

    def pages(self, problem: Problem) -> int:
        """Pages that make up a tile."""
        return max(1, TILE // problem.page)

    def column_blocks(self, dim: int, problem: Problem) -> int:
        """128-byte column blocks of a tile row of `dim` elements."""
        return max(1, dim * problem.dtype.nbytes // SWIZZLE_BYTES)

    def copies(self, problem: Problem) -> int:
        """Boxes, and so full barriers, of one tile."""
        return 1 if self.pages(problem) == 1 else self.pages(problem) * self.column_blocks(problem.tile_dim, problem)

    def box(self, problem: Problem, dim: int) -> tuple[int, ...]:
        """Box of a tile that is `dim` elements wide."""
        if self.pages(problem) == 1:
            return (1, 1, TILE, dim)
        return (1, 1, problem.page, dim // self.column_blocks(dim, problem))

    def box_bytes(self, problem: Problem, dim: int) -> int:
        _, _, rows, cols = self.box(problem, dim)
        return rows * cols * problem.dtype.nbytes

    def check(self, problem: Problem) -> None:
        if problem.value_tile_dim != problem.tile_dim and self.pages(problem) > 1:
            raise SpecError(
                f"K tiles of {problem.tile_dim} and V tiles of {problem.value_tile_dim} columns need pages that fill a tile", key="problem.page", value=problem.page,
                allowed="64, 128", reason="with shorter pages a tile comes in boxes, and K and V would have different numbers of them",
            )

    def constants(self, problem: Problem) -> dict[str, Constant]:
        _, _, rows, cols = self.box(problem, problem.tile_dim)
        box_bytes = [int(self.box_bytes(problem, dim) * self.expect_scale) for dim in (problem.tile_dim, problem.value_tile_dim)]
        return {
            "TILE": Constant(TILE, "tokens of a key tile"),
            "PAGED": Constant(True, "keys are found through page ids"),
            "PAGE": Constant(problem.page, "tokens of a cache page"),
            "TILE_PAGES": Constant(self.pages(problem), "pages that make up a tile"),
            "PAGE_TILES": Constant(max(1, problem.page // TILE), "tiles in a page"),
            "EVICT_FIRST": Constant(bool(self.evict_first), "the part of K and V that the L2 cache cannot keep leaves it first"),
            "PAGE_BLOCK": Constant(PAGE_BLOCK, "page ids that the producer warp holds in a register"),
            "COLUMN_BLOCKS": Constant(self.column_blocks(problem.tile_dim, problem), "128-byte column blocks of a tile row"),
            "COPIES": Constant(self.copies(problem), "boxes (and full barriers) of a tile"),
            "BOX_ROWS": Constant(rows, "tokens of a TMA box"),
            "BOX_COLS": Constant(cols, "head elements of a TMA box"),
            "BOX_BYTES": Constant(box_bytes[0], "bytes of a TMA box"),
            "VALUE_BOX_BYTES": Constant(box_bytes[1], "bytes of a TMA box of V", same_as="BOX_BYTES"),
            "OTHER_VALUES": Constant(problem.value_tile_dim != problem.tile_dim, "V tiles have another width than K tiles"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        k_box, v_box = (BoxDescriptor(problem.dtype, self.box(problem, dim)) for dim in (problem.tile_dim, problem.value_tile_dim))
        return (
            Argument("k_desc", k_box, "K cache as (page, head, token, dim)"),
            Argument("v_desc", v_box, "V cache as (page, head, token, dim)"),
            Argument("block_ids", "*i32", "page ids [batch, table width]; entries past a sequence's last page are not read"),
            Argument("block_ids_stride", "i64", "elements from one sequence's page ids to the next"),
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        tile = Port("ring", problem.dtype, ("key", "dim"), (TILE, problem.tile_dim), Place.SHARED, "swizzled", "dim")
        return (Function("page_block", (), (Port("ids", DType.I32, ("page",), (PAGE_BLOCK,)),)), Function("page_at"), Function("key_source"), Function("open_pages"), Function("turn_pages"), Function("load_tile", (), (tile,)))


@jit
def first_page(tile):
    """Page of the sequence that a key tile starts in."""
    return tile * TILE_PAGES // PAGE_TILES


@jit
def page_block(args, page_row, page, kv_len, seq, head):
    """The next PAGE_BLOCK page ids of a sequence from `page` on, one a lane, -1 where no key is seen; page_row: pointer to the sequence's page ids."""
    pages = page_numbers(args, page + vec_index(PAGE_BLOCK), seq, head)
    seen = pages * PAGE < kv_len
    if SKIP_PAGES:
        # pages of the first tile that lie before every query's window: they may be gone
        first = 0
        first = first_key(args, first, kv_len)
        seen = seen & ((pages + 1) * PAGE > first)
    return load(page_row + pages, mask=seen, other=-1)


@jit
def page_at(ids, lane):
    """One id of a block, in every lane."""
    return reduce_max(where(vec_index(PAGE_BLOCK) == lane, ids, -1), 0)


@jit
def open_pages(args, seq, head, first, kv_len, first_ids):
    """State of a walk over a task's pages: the sequence's page ids, the block in use, the next block, and the page where the next begins."""
    page_row = key_source(args, seq)
    start = first_page(first)
    if PAGE_IDS:
        ids = smem_load(first_ids)
    else:
        ids = page_block(args, page_row, start, kv_len, seq, head)
    return page_row, ids, page_block(args, page_row, start + PAGE_BLOCK, kv_len, seq, head), start + PAGE_BLOCK


@jit
def turn_pages(args, page_row, ids, later, end, page, kv_len, seq, head):
    """The walk's state once `page` is reached: the next block is in use, and the one after it on its way."""
    if page >= end:
        ids = later
        later = page_block(args, page_row, end + PAGE_BLOCK, kv_len, seq, head)
        end += PAGE_BLOCK
    return ids, later, end


@jit
def load_tile(desc, boxes, full, slot, ids, lane, tile, head):
    """Start the copies of one tile into ring slot `slot`; boxes: the ring seen as a ring of boxes; ids, lane: where its first page id is."""
    if TILE_PAGES == 1:
        copy(desc, boxes.slot(slot), [1, 1, BOX_ROWS, BOX_COLS], [page_at(ids, lane), head, (tile % PAGE_TILES) * TILE, 0], barrier=full[slot])
    else:
        for j in static_range(TILE_PAGES):
            page = page_at(ids, lane + j)
            for c in static_range(COLUMN_BLOCKS):
                box = (slot * COLUMN_BLOCKS + c) * TILE_PAGES + j
                copy(desc, boxes.slot(box), [1, 1, BOX_ROWS, BOX_COLS], [page, head, 0, c * BOX_COLS], barrier=full[box])


@jit
def load_value_tile(desc, boxes, full, slot, ids, lane, tile, head):
    """The same for a V tile of another width; pages fill a tile."""
    copy(desc, boxes.slot(slot), [1, 1, BOX_ROWS, VALUE_DIM], [page_at(ids, lane), head, (tile % PAGE_TILES) * TILE, 0], barrier=full[slot])
