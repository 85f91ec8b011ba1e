"""What of the cache is read, and the arguments that are refused."""

import math

import pytest
import torch

from tle_attn.oracle import attention


@pytest.mark.parametrize("kv_len", [1, 13, 63, 64, 65, 127])
def test_unused_slots_pages_and_block_ids_do_not_matter(small_batch, kv_len):
    case = small_batch(kv_len, [kv_len, 40], [1, 1], page=16)
    poisoned, _ = attention(*case.arguments(), query_tokens=1)
    case.k, case.v = case.k.nan_to_num(7.0), case.v.nan_to_num(-7.0)
    case.block_ids = case.block_ids.clamp(0, 1)
    for b, pages in enumerate(case.table):
        case.block_ids[b, : len(pages)] = torch.tensor(pages)
    plain, _ = attention(*case.arguments(), query_tokens=1)
    assert torch.isfinite(poisoned).all() and torch.equal(poisoned, plain)


def test_pages_that_fell_out_of_the_window_are_not_read(small_batch):
    """Window 5 of 21 keys, 3 queries: the first query stands at 18 and sees keys from 14 on."""
    case = small_batch(2, [21], [3], page=4)
    want, _ = attention(*case.arguments(), query_tokens=3, window=5)
    for t in range(14):
        case.k[case.table[0][t // 4], t % 4] = math.nan
        case.v[case.table[0][t // 4], t % 4] = math.nan
    case.block_ids[0, :3] = -1
    got, _ = attention(*case.arguments(), query_tokens=3, window=5)
    assert torch.isfinite(got).all() and torch.equal(got, want)
    case.v[case.table[0][3], 2] = math.nan
    assert torch.isnan(attention(*case.arguments(), query_tokens=3, window=5)[0][0]).all(), "key 14 is read"


def test_strides_do_not_matter(small_batch):
    case = small_batch(3, [10, 7], [2, 2], page=4, heads=(4, 2))
    want, _ = attention(*case.arguments(), query_tokens=2)
    q, k, v, ids, lens = case.arguments()
    head_major = k.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)
    both = torch.stack([torch.zeros_like(v), v], dim=1)
    wide_q = torch.cat([q, torch.zeros_like(q)], dim=1)[:, :4]
    assert head_major.stride() != k.stride() and both[:, 1].stride() != v.stride()
    assert torch.equal(attention(wide_q, head_major, both[:, 1], ids, lens, query_tokens=2)[0], want)


def test_a_sequence_without_queries(small_batch):
    case = small_batch(4, [9, 9, 9], [3, 0, 3], page=4)
    out, lse = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e")
    case.check(out, lse)


def test_an_empty_batch():
    q, cache = torch.zeros(0, 2, 4), torch.zeros(1, 4, 1, 4)
    none, lens = torch.zeros(0, 1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    out, lse = attention(q, cache, cache, none, lens, query_tokens=1, lse_base="e")
    assert out.shape == (0, 2, 4) and lse.shape == (0, 2)


# ---- refused arguments: a change to one of the five tensors


@pytest.mark.parametrize(
    ("number", "change", "error", "message"),
    [
        (3, lambda t: t.long(), TypeError, "block_ids: torch.int64; must be torch.int32"),
        (4, lambda t: t.long(), TypeError, "kv_lens: torch.int64; must be torch.int32"),
        (0, lambda t: t.int(), TypeError, "q: torch.int32; must be a floating-point type"),
        (1, lambda t: t.to(torch.uint8), TypeError, "k_cache: torch.uint8; must be a floating-point type"),
        (0, lambda t: t[0], ValueError, r"q: shape \[4, 3\]; must be \[tokens, q heads, dim\]"),
        (0, lambda t: t[:, :3], ValueError, "q: 3 heads; must be a multiple of the 2 kv heads"),
        (0, lambda t: t[:, :, :2], ValueError, "q: dim 2; must equal k_cache's 3"),
        (0, lambda t: t[:3], ValueError, "q: 3 rows; must be at least the 4"),
        (1, lambda t: t[0], ValueError, r"k_cache: shape .* must be \[pages, page, kv heads, dim\]"),
        (2, lambda t: t[1:], ValueError, "v_cache: .* must equal k_cache's"),
        (2, lambda t: t.to("meta"), ValueError, "v_cache: on meta, but q is on cpu"),
        (3, lambda t: t[:1], ValueError, r"block_ids: shape \[1, 4\]; must be \[batch, columns\] with the batch 2"),
        (3, lambda t: t[:, :1], ValueError, "block_ids: 1 columns; sequence 0 with kv_len 5 and page 4 needs 2"),
        (4, lambda t: t[None], ValueError, r"kv_lens: shape \[1, 2\]; must be \[batch\]"),
        (4, lambda t: t - 5, ValueError, "kv_lens: -1 for sequence 1; must not be negative"),
    ],
)
def test_tensors_that_do_not_fit(small_batch, number, change, error, message):
    arguments = list(small_batch(1, [5, 4], [2, 2], page=4, heads=(4, 2)).arguments())
    arguments[number] = change(arguments[number])
    with pytest.raises(error, match=message):
        attention(*arguments, query_tokens=2)


@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1])
def test_a_page_in_use_that_does_not_exist(small_batch, bad):
    case = small_batch(1, [5, 4], [2, 2], page=4)
    assert len(case.k) == 5
    case.block_ids[0, 1] = bad
    with pytest.raises(ValueError, match=rf"block_ids: {bad} for sequence 0, logical page 1; a page in use must be in 0 \.\. 4"):
        attention(*case.arguments(), query_tokens=2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "cu_seqlens_q, query_tokens: give exactly one"),
        ({"query_tokens": 2, "cu_seqlens_q": torch.tensor([0, 2, 4], dtype=torch.int32)}, ValueError, "give exactly one"),
        ({"query_tokens": 0}, ValueError, "query_tokens: 0; must be at least 1"),
        ({"cu_seqlens_q": torch.tensor([0, 2, 4])}, TypeError, "cu_seqlens_q: torch.int64; must be torch.int32"),
        ({"cu_seqlens_q": torch.tensor([0, 4], dtype=torch.int32)}, ValueError, r"cu_seqlens_q: shape \[2\]; must be \[batch \+ 1\] = \[3\]"),
        ({"cu_seqlens_q": torch.tensor([1, 2, 4], dtype=torch.int32)}, ValueError, "must start at 0 and never decrease"),
        ({"cu_seqlens_q": torch.tensor([0, 3, 2], dtype=torch.int32)}, ValueError, "must start at 0 and never decrease"),
    ],
)
def test_shares_of_the_queries_that_do_not_fit(small_batch, options, error, message):
    with pytest.raises(error, match=message):
        attention(*small_batch(1, [5, 4], [2, 2]).arguments(), **options)
