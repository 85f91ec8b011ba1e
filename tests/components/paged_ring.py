"""A producer and a consumer around a ring: pages of a random cache come out as rows of tokens."""

from functools import lru_cache

import torch

from tle_attn.components.loaders.paged_tma import PagedTma
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.spec import Argument, Kernel, Problem, Role
from tle_attn.testing.mini_kernel import mini_kernel, run_kernel

TEXT = """
@jit
def produce(args, boxes, full, empty):
    for i in range(args.count):
        tile = args.first + i
        ids = page_block(args, args.block_ids, first_page(tile), args.kv_len, 0, 0)
        acquire(empty, i)
        load_tile(args.k_desc, boxes, full, slot_of(i), ids, 0, tile, args.head)


@jit
def consume(args, ring, full, empty):
    for i in range(args.count):
        wait_tile(full, i)
        t = smem_load(ring.slot(slot_of(i)))
        token = i * TILE + rows(t)
        store(args.tokens + (token * HEAD_DIM)[:, None] + cols(t)[None, :], t)
        role_sync()  # the tile's reads are over
        release(empty, i)


@jit
def test(args):
    ring = alloc([STAGES, TILE, HEAD_DIM], DTYPE)
    if TILE_PAGES == 1:
        boxes = ring
    else:
        boxes = alias(ring, [STAGES * COPIES, BOX_ROWS, BOX_COLS])
    full = alloc_barriers(STAGES * COPIES, expect_bytes=BOX_BYTES)
    empty = alloc_barriers(STAGES, READERS, init=READY)
    fence_async()
    warp_specialize([(consume, (args, ring, full, empty)), (produce, (args, boxes, full, empty))], [1], [32])
"""


@lru_cache
def loader_kernel(problem: Problem, ring: MbarrierRing, loader: PagedTma) -> Kernel:
    numbers = ("first", "count", "kv_len", "head")
    arguments = [*(Argument(n, "i32", "") for n in numbers), Argument("tokens", f"*{problem.dtype.value}", "tiles as rows of tokens")]
    roles = (Role("consume", "consume", 4, 0), Role("produce", "produce", 1, 32))
    return mini_kernel(TEXT, loader, ring, problem=problem, arguments=arguments, roles=roles)


class Cache:
    """A cache of random tokens, and the page table of one sequence; entries past its end hold what no page has."""

    def __init__(self, problem: Problem, kv_len: int, layout: str = "NHD", heads: int = 2):
        self.page, self.kv_len, dtype = problem.page, kv_len, getattr(torch, problem.dtype.torch_name)
        used = -(-kv_len // self.page)
        shape = (used + 2, self.page, heads, problem.head_dim) if layout == "NHD" else (used + 2, heads, self.page, problem.head_dim)
        self.storage = torch.randn(shape).to(dtype)
        self.pages = self.storage if layout == "NHD" else self.storage.permute(0, 2, 1, 3)
        self.table = torch.full((used + 64,), 2**31 - 1, dtype=torch.int32)
        self.table[:used] = torch.randperm(used + 2)[:used].int()

    def tokens(self, first: int, count: int, head: int) -> torch.Tensor:
        """Tokens of `count` tiles from tile `first` on; pages that the sequence does not have are zero."""
        rows = []
        for token in range(first * 64, (first + count) * 64):
            held = token // self.page < -(-self.kv_len // self.page)
            rows.append(self.pages[self.table[token // self.page], token % self.page, head] if held else torch.zeros_like(self.pages[0, 0, 0]))
        return torch.stack(rows) if rows else self.pages.new_zeros(0, self.pages.shape[3])


def run(
    problem: Problem, cache: Cache, first: int, count: int, head: int, target: str, device: str, *, seed: int = 0, ring: MbarrierRing | None = None, loader: PagedTma | None = None
) -> torch.Tensor:  # fmt: skip
    """Tokens [count * 64, head_dim] as they came through the ring."""
    out = torch.full((max(count, 1) * 64, problem.head_dim), float("nan"), device=device).to(cache.storage.dtype)
    moved = cache.storage.to(device)
    view = moved.permute(0, 2, 1, 3) if cache.pages is cache.storage else moved  # (page, head, token, dim)
    values = {"k_desc": view, "block_ids": cache.table.to(device), "tokens": out, "first": first, "count": count, "kv_len": cache.kv_len, "head": head}
    run_kernel(loader_kernel(problem, ring or MbarrierRing(stages=3), loader or PagedTma()), values, target=target, seed=seed)
    return out.cpu()[: count * 64]
