"""Key tiles that a 128 x 128 block mask keeps, latest first: the producer compacts the mask by warp reductions, 32 tiles at a time.

Semantics of hpc-ops: byte (local query tile, absolute key tile) per sequence and query head; causality comes on top.  Where the mask has fewer columns
than the causal range has tiles, exactly one more tile, at the index of the first missing column, counts as kept.
"""

from __future__ import annotations

import torch
from attrs import frozen

from tle_attn.dialect import as_int64, cdiv, jit, load, maximum, reduce_max, reduce_sum, vec_index, where
from tle_attn.spec import Argument, Block, Constant, Function, Problem

LANES = 32


@frozen(kw_only=True)
class BlockMask(Block):
    """block_mask u8 [batch, query heads, >= query tiles, columns]; any byte but 0 keeps a tile.  A query tile of which nothing is kept has zero rows.

    No list of tiles is stored: the walk asks each group of 32 mask bytes, one a lane, for the latest kept tile before the last one it gave.
    """

    KIND = "tiles"
    NAME = "block_mask"
    BLOCK_MASK = True

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"BLOCK_MASK": Constant(True, "key tiles are chosen by a mask"), "MASK_LANES": Constant(LANES, "mask bytes that are looked at together")}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (
            Argument("block_mask", "*u8", "kept tiles [batch, query heads, query tiles, columns], 128 x 128 each"),
            Argument("block_mask_batch_stride", "i64", "elements from one sequence's mask to the next"),
            Argument("block_mask_head_stride", "i64", "elements from one query head's mask to the next"),
            Argument("block_mask_row_stride", "i64", "elements from one query tile's row to the next"),
            Argument("block_mask_columns", "i32", "key tiles that the mask speaks of"),
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("survey"), Function("open_tiles"), Function("next_tile"))

    @staticmethod
    def reference(mask_row: torch.Tensor, first: int, last: int) -> list[int]:
        """Semantic definition: the tiles that are visited, in order."""
        columns = len(mask_row)
        return [t for t in range(last - 1, first - 1, -1) if (t < columns and mask_row[t] != 0) or t == columns]


@jit
def kept_tiles(args, seq, head, row0, group, last):
    """One group of the mask's row, int32 0 / 1: lane i is tile 32 * group + i."""
    row = args.block_mask + seq * args.block_mask_batch_stride + head * args.block_mask_head_stride + as_int64(row0 // 128) * args.block_mask_row_stride
    tile = group * MASK_LANES + vec_index(MASK_LANES)
    there = (tile < last) & (tile < args.block_mask_columns)
    byte = load(row + tile, mask=there, other=0).to(I32)
    return where((byte != 0) | ((tile == args.block_mask_columns) & (tile < last)), 1, 0)


@jit
def latest_kept(kept, group, at):
    """The latest kept tile of a group before tile `at`, or -1."""
    tile = group * MASK_LANES + vec_index(MASK_LANES)
    return reduce_max(where((kept != 0) & (tile < at), tile, -1), 0)


@jit
def survey(args, seq, head, row0, first, last):
    """(tiles, the first one, the second one); -1 where there is none."""
    count = 0
    latest = -1
    second = -1
    groups = cdiv(last, MASK_LANES)
    for i in range(groups):
        group = groups - 1 - i
        kept = kept_tiles(args, seq, head, row0, group, last)
        top = latest_kept(kept, group, last)
        if count == 0:
            latest = top
            second = latest_kept(kept, group, top)
        else:
            if second < 0:
                second = top
        count += reduce_sum(kept, 0)
    return count, latest, second


@jit
def open_tiles(args, seq, head, row0, last):
    """State of a walk: the group of the tile before `at`, and `at`, before which the next tile lies."""
    return kept_tiles(args, seq, head, row0, (last - 1) // MASK_LANES, last), last


@jit
def next_tile(args, seq, head, row0, last, kept, at):
    """The next tile, and the state behind it; not to be called once all are given."""
    group = (at - 1) // MASK_LANES
    tile = latest_kept(kept, group, at)
    while tile < 0:
        group -= 1
        kept = kept_tiles(args, seq, head, row0, group, last)
        tile = latest_kept(kept, group, at)
    if tile % MASK_LANES == 0:
        kept = kept_tiles(args, seq, head, row0, maximum(group - 1, 0), last)
    return tile, kept, tile
