"""Block masks with their tail rule, and tree masks."""

import math

import pytest
import torch

from tle_attn.oracle import attention


def _mask(batch: int, heads: int, q_tiles: int, kv_tiles: int, seed: int) -> torch.Tensor:
    return (torch.rand(batch, heads, q_tiles, kv_tiles, generator=torch.Generator().manual_seed(seed)) < 0.5).to(torch.uint8) * 3


@pytest.mark.parametrize("causal", [True, False])
def test_block_mask_by_the_definition(small_batch, fresh_seed, causal):
    """Query tiles count from the sequence's first query, key tiles from its first key; both ragged at the edges."""
    case = small_batch(fresh_seed, [300, 171], [140, 20], page=16, heads=(4, 2))
    mask = _mask(2, 4, 2, 2, fresh_seed)
    out, lse = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), block_mask=mask, causal=causal, lse_base="e")
    edges = {0, 1, 127, 128, 139, 140, 159}
    case.check(out, lse, rows=edges, block_mask=mask, causal=causal)


def test_a_short_mask_keeps_exactly_one_more_tile(small_batch):
    """Three mask tiles of zeros and 640 keys: only tile 3 counts, as far as causality lets it."""
    case = small_batch(3, [640], [384], page=32, heads=(1, 1))
    _, lse = attention(*case.arguments(), query_tokens=384, block_mask=torch.zeros(1, 1, 3, 3, dtype=torch.uint8), lse_base="e")
    starts_at = 640 - 384
    first_seeing = 3 * 128 - starts_at
    assert (lse[:first_seeing] == -math.inf).all() and torch.isfinite(lse[first_seeing:]).all()
    case.q.zero_()
    _, lse = attention(*case.arguments(), query_tokens=384, block_mask=torch.zeros(1, 1, 3, 3, dtype=torch.uint8), lse_base="e")
    seen = torch.exp(lse[:, 0]).round().tolist()
    assert seen == [min(max(starts_at + i + 1 - 384, 0), 128) for i in range(384)]


def test_strict_makes_a_short_mask_an_error(small_batch):
    case = small_batch(4, [640, 128], [384, 1], page=32, heads=(1, 1))
    mask = torch.ones(2, 1, 3, 3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="block_mask: 3 kv tiles; sequence 0 with kv_len 640 needs 5"):
        attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), block_mask=mask, strict_block_mask=True)
    enough = torch.ones(2, 1, 3, 5, dtype=torch.uint8)
    strict, _ = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), block_mask=enough, strict_block_mask=True)
    dense, _ = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q())
    assert torch.equal(strict, dense)


def test_a_query_tile_that_keeps_nothing(small_batch):
    case = small_batch(5, [256], [256], page=64, heads=(2, 1))
    mask = torch.ones(1, 2, 2, 2, dtype=torch.uint8)
    mask[0, 1, 1] = 0
    for empty_row in ("zero", "nan"):
        out, lse = attention(*case.arguments(), query_tokens=256, block_mask=mask, lse_base="2", empty_row=empty_row)
        assert (torch.isnan(out[128:, 1]) if empty_row == "nan" else out[128:, 1] == 0).all() and (lse[128:, 1] == -math.inf).all()
        assert torch.isfinite(out[:128]).all() and torch.isfinite(out[:, 0]).all()


def test_tree_mask_replaces_the_causal_rule_among_new_tokens_only(small_batch):
    case = small_batch(6, [9, 3], [3, 3], page=4)
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.uint8).expand(2, 3, 3)
    out, lse = attention(*case.arguments(), query_tokens=3, tree_mask=tree, lse_base="e")
    case.check(out, lse, tree_mask=tree)
    chain = torch.ones(3, 3, dtype=torch.bool).tril().expand(2, 3, 3)
    as_chain, _ = attention(*case.arguments(), query_tokens=3, tree_mask=chain)
    assert torch.equal(as_chain, attention(*case.arguments(), query_tokens=3)[0])
    assert not torch.equal(as_chain, out)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"block_mask": torch.ones(1, 2, 1, 1)}, TypeError, "block_mask: torch.float32; must be torch.uint8"),
        ({"block_mask": torch.ones(1, 1, 1, 1, dtype=torch.uint8)}, ValueError, r"block_mask: shape \[1, 1, 1, 1\]; must be \[1, 2, >= 1, >= 1\]"),
        ({"block_mask": torch.ones(1, 2, 1, 0, dtype=torch.uint8)}, ValueError, "block_mask: shape"),
        ({"tree_mask": torch.ones(1, 2, 2)}, TypeError, "tree_mask: torch.float32; must be torch.bool or torch.uint8"),
        ({"tree_mask": torch.ones(1, 3, 3, dtype=torch.bool)}, ValueError, r"tree_mask: shape \[1, 3, 3\]; must be .* \[1, 2, 2\]"),
        ({"tree_mask": torch.ones(1, 2, 2, dtype=torch.bool), "causal": False}, ValueError, "tree_mask: given with causal=False"),
    ],
)
def test_masks_that_do_not_fit(small_batch, options, error, message):
    with pytest.raises(error, match=message):
        attention(*small_batch(1, [5], [2]).arguments(), query_tokens=2, **options)
