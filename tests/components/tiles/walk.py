"""A kernel that visits the key tiles of a query tile as the producer of prefill does."""

import torch

from tle_attn.spec import Argument, Block, Kernel, Problem, Role
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

POISON = -77
TEXT = """
@jit
def test(args):
    count, tile_0, tile_1 = survey(args, args.seq, args.head, args.row0, args.first, args.last)
    store(args.counted, count)
    store(args.counted + 1, tile_0)
    store(args.counted + 2, tile_1)
    if count > 0:
        kept, at = open_tiles(args, args.seq, args.head, args.row0, args.last)
        for i in range(count):
            tile, kept, at = next_tile(args, args.seq, args.head, args.row0, args.last, kept, at)
            store(args.tiles + i, tile)
"""
NUMBERS = ("seq", "head", "row0", "first", "last")


def walk_kernel(block: Block, warps: int = 4) -> Kernel:
    arguments = [*(Argument(name, "i32", "") for name in NUMBERS), Argument("counted", "*i32", "tiles, first, second"), Argument("tiles", "*i32", "tiles in order")]
    return mini_kernel(TEXT, block, arguments=arguments, roles=[Role("test", "test", warps, 0)], companions=prefill_companions(Problem()))


def walk(kernel: Kernel, last: int, target: str, device: str, **values) -> tuple[list[int], list[int]]:
    """What `survey` says, and the tiles as they were visited; the numbers that the block does not look at are not passed."""
    counted = torch.full((3,), POISON, dtype=torch.int32, device=device)
    tiles = torch.full((last + 1,), POISON, dtype=torch.int32, device=device)
    run_kernel(kernel, {"counted": counted, "tiles": tiles, "last": last, **values}, target=target)
    visited = tiles.cpu().tolist()
    count = max(int(counted[0]), 0)
    assert all(tile == POISON for tile in visited[count:])
    return counted.cpu().tolist(), visited[:count]


def check(kernel: Kernel, expected: list[int], last: int, target: str, device: str, *, absent: bool = True, **values) -> None:
    """The walk is `expected`, and the survey has counted it; `absent`: it says -1 for a first or second tile that there is not."""
    counted, visited = walk(kernel, last, target, device, **values)
    assert visited == expected and counted[0] == len(expected)
    pair = (expected + [-1, -1])[:2]
    known = 2 if absent else min(len(expected), 2)
    assert counted[1 : 1 + known] == pair[:known]
