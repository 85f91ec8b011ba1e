"""Paged loader of prefill: tiles of a random page table arrive as rows of tokens, for every page size, layout and element type."""

import pytest
import torch

from tests.components.tile_ring import ring_kernel, through_the_ring
from tle_attn.components.loaders.paged_tiles import PagedTiles
from tle_attn.spec import DType, Problem


class Cache:
    """K and V of random tokens, and the page tables of three sequences of which the second is read; entries past its end hold what no page has."""

    def __init__(self, problem: Problem, kv_len: int, layout: str):
        self.page, self.used, self.keys = problem.page, -(-kv_len // problem.page), problem.prefill_keys
        dtype, pages, heads = getattr(torch, problem.dtype.torch_name), self.used + 3, 2
        shape = (pages, heads, self.page) if layout == "HND" else (pages, self.page, heads)
        self.k, self.v = (torch.randn((*shape, dim)).to(dtype) for dim in (problem.head_dim, problem.v_dim))
        if layout == "NHD":
            self.k, self.v = self.k.permute(0, 2, 1, 3), self.v.permute(0, 2, 1, 3)
        self.table = torch.full((3, self.used + 16), 2**31 - 1, dtype=torch.int32)
        self.table[1, : self.used] = torch.randperm(pages)[: self.used].int()

    def tokens(self, cache: torch.Tensor, first: int, count: int, head: int) -> torch.Tensor:
        """Bytes of `count` tiles from tile `first` on; pages that the sequence does not have are zero."""
        rows = torch.zeros(count * self.keys, cache.shape[3]).to(cache.dtype)
        for i in range(count * self.keys):
            token = first * self.keys + i
            if token // self.page < self.used:
                rows[i] = cache[self.table[1, token // self.page], head, token % self.page]
        return rows.view(torch.uint8)


def check(problem: Problem, kv_len: int, first: int, count: int, target: str, device: str, seed: int, *, layout: str = "NHD", head: int = 1, stages: int = 2) -> None:
    cache = Cache(problem, kv_len, layout)
    table = cache.table.to(device)
    values = {"k_desc": cache.k.to(device), "v_desc": cache.v.to(device), "block_ids": table, "block_ids_stride": table.stride(0)}
    kernel = ring_kernel(problem, PagedTiles(), stages)
    k, v = through_the_ring(kernel, count, target, device, seed, seq=1, first=first, kv_len=kv_len, head=head, **values)
    assert torch.equal(k, cache.tokens(cache.k, first, count, head)) and torch.equal(v, cache.tokens(cache.v, first, count, head))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_tiles(target, device, seed, page, layout, head_dim):
    """The last tile reaches past the end of the sequence: into its last page, and into pages that it does not have."""
    check(Problem(page=page, head_dim=head_dim), 3 * 128 + 17, 0, 4, target, device, seed, layout=layout)


@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_fp8(target, device, seed, page, head_dim):
    check(Problem(dtype=DType.FP8, page=page, head_dim=head_dim), 130, 0, 2, target, device, seed, head=0)


@pytest.mark.parametrize("page", [16, 64, 128])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP8])
def test_a_head_in_two_tiles(target, device, seed, page, dtype):
    check(Problem(dtype=dtype, page=page, head_dim=192, value_dim=128), 2 * 128 + 17, 0, 3, target, device, seed)


@pytest.mark.parametrize("page", [16, 64, 128])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP8])
def test_tiles_of_64_keys(target, device, seed, page, dtype):
    """Of a page of 128, one half or the other."""
    check(Problem(dtype=dtype, page=page, head_dim=256), 3 * 64 + 17, 1, 3, target, device, seed)


@pytest.mark.parametrize("page", [16, 128])
def test_a_later_part_of_a_long_sequence(target, device, seed, page):
    check(Problem(page=page), 20 * 128 + 1, 18, 3, target, device, seed)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_rings(target, device, seed, stages):
    """Any number of tiles around the ring's edges."""
    for count in sorted({0, 1, stages, stages + 1, 2 * stages + 1}):
        check(Problem(page=32, head_dim=64), max(count, 1) * 128, 0, count, target, device, seed, stages=stages)


@pytest.mark.parametrize("page,head_dim,dtype,box,copies", [
    (64, 128, DType.BF16, (1, 1, 64, 64), 4), (128, 128, DType.BF16, (1, 1, 128, 64), 2), (16, 128, DType.BF16, (1, 1, 16, 64), 16), (128, 64, DType.BF16, (1, 1, 128, 64), 1),
    (128, 256, DType.BF16, (1, 1, 64, 64), 4), (16, 256, DType.FP8, (1, 1, 16, 128), 8),
    (64, 128, DType.FP8, (1, 1, 64, 128), 2), (128, 128, DType.FP8, (1, 1, 128, 128), 1), (16, 64, DType.FP8, (1, 1, 16, 64), 8),
])  # fmt: skip
def test_boxes(page, head_dim, dtype, box, copies):
    """A box for each page and 128-byte column block; the boxes of a tile hold its bytes exactly."""
    problem, loader = Problem(page=page, head_dim=head_dim, dtype=dtype), PagedTiles()
    assert (loader.box(problem), loader.copies(problem)) == (box, copies)
    assert loader.box_bytes(problem) * copies == problem.prefill_keys * head_dim * dtype.nbytes
