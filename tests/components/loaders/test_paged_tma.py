"""Paged TMA loader through a ring: tiles of a random page table arrive as rows of tokens, for every page size and layout."""

import pytest
import torch

from tests.components.paged_ring import Cache, run
from tle_attn.components.loaders.paged_tma import PagedTma
from tle_attn.spec import DType, Problem


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_tiles(target, device, seed, page, layout, head_dim):
    """The last tile reaches past the end of the sequence: into its last page, and into pages that it does not have."""
    problem = Problem(page=page, head_dim=head_dim)
    cache = Cache(problem, kv_len=5 * 64 + 17, layout=layout)
    got = run(problem, cache, 0, 6, 1, target, device, seed=seed)
    assert torch.equal(got, cache.tokens(0, 6, 1))


@pytest.mark.parametrize("page", [16, 64, 128])
def test_a_later_part_of_a_long_sequence(target, device, seed, page):
    problem = Problem(page=page)
    cache = Cache(problem, kv_len=40 * 64 + 1)
    assert torch.equal(run(problem, cache, 35, 6, 0, target, device, seed=seed), cache.tokens(35, 6, 0))


@pytest.mark.parametrize("page", [16, 64])
def test_fp8(target, device, seed, page):
    problem = Problem(dtype=DType.FP8, page=page)
    cache = Cache(problem, kv_len=130)
    got = run(problem, cache, 0, 3, 1, target, device, seed=seed)
    assert torch.equal(got.view(torch.uint8), cache.tokens(0, 3, 1).view(torch.uint8))


@pytest.mark.parametrize("page,head_dim,dtype,box,copies", [
    (64, 128, DType.BF16, (1, 1, 64, 128), 1), (128, 128, DType.BF16, (1, 1, 64, 128), 1), (32, 128, DType.BF16, (1, 1, 32, 64), 4), (16, 128, DType.BF16, (1, 1, 16, 64), 8),
    (16, 64, DType.BF16, (1, 1, 16, 64), 4), (16, 128, DType.FP8, (1, 1, 16, 128), 4),
])  # fmt: skip
def test_boxes(page, head_dim, dtype, box, copies):
    """A page shorter than a tile takes a box for each 128-byte column block; the boxes of a tile hold its bytes exactly."""
    problem, loader = Problem(page=page, head_dim=head_dim, dtype=dtype), PagedTma()
    assert (loader.box(problem, head_dim), loader.copies(problem)) == (box, copies)
    assert loader.box_bytes(problem, head_dim) * copies == 64 * head_dim * dtype.nbytes
