"""Contiguous loader of prefill: tiles of K and V that all sequences share, from the token where a sequence starts."""

import pytest
import torch

from tests.components.tile_ring import ring_kernel, through_the_ring
from tle_attn.components.loaders.contiguous_tiles import ContiguousTiles
from tle_attn.spec import DType, Problem

LENGTHS = (37, 300, 129, 5)


@pytest.mark.parametrize("head_dim,value_dim", [(64, 64), (128, 128), (192, 128), (256, 256)])
@pytest.mark.parametrize("seq", range(4))
def test_tiles(target, device, seed, seq, head_dim, value_dim):
    """A tile that reaches past its sequence holds the next ones' tokens, and zeros past the last row of the tensor."""
    problem, starts = Problem(head_dim=head_dim, value_dim=value_dim), torch.tensor([0, *LENGTHS]).cumsum(0)
    keys = problem.prefill_keys
    heads, head, rows, count = 3, 2, int(starts[-1]), -(-LENGTHS[seq] // keys)
    k, v = (torch.randn(rows, heads, dim).bfloat16() for dim in (head_dim, value_dim))
    values = {"k_desc": k.to(device).permute(1, 0, 2), "v_desc": v.to(device).permute(1, 0, 2), "cu_seqlens_q": starts.int().to(device)}
    got = through_the_ring(ring_kernel(problem, ContiguousTiles()), count, target, device, seed, seq=seq, first=0, head=head, **values)
    for out, tensor in zip(got, (k, v)):
        expected = torch.zeros(count * keys, tensor.shape[2]).bfloat16()
        there = tensor[int(starts[seq]) :, head][: count * keys]
        expected[: len(there)] = there
        assert torch.equal(out, expected.view(torch.uint8))


@pytest.mark.parametrize("head_dim,dtype,box,copies", [(128, DType.BF16, (1, 128, 64), 2), (64, DType.BF16, (1, 128, 64), 1), (128, DType.FP8, (1, 128, 128), 1), (256, DType.BF16, (1, 64, 64), 4)])
def test_boxes(head_dim, dtype, box, copies):
    problem, loader = Problem(head_dim=head_dim, dtype=dtype), ContiguousTiles()
    assert (loader.box(problem), loader.copies(problem)) == (box, copies)
    assert loader.box_bytes(problem) * copies == problem.prefill_keys * head_dim * dtype.nbytes
