"""The oracle against the definition, for every option alone and for random combinations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tle_attn.oracle import attention, paged_attention


@st.composite
def problems(draw):
    """Arguments of a small batch, and options."""
    group, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    sequences = draw(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 4)), min_size=1, max_size=3))
    batch = {
        "seed": draw(st.integers(0, 10**6)),
        "kv_lens": [kv for kv, _ in sequences],
        "q_lens": [n for _, n in sequences],
        "page": draw(st.integers(1, 5)),
        "heads": (group * kv_heads, kv_heads),
        "dims": (draw(st.integers(1, 4)), draw(st.integers(1, 4))),
    }
    generator = torch.Generator().manual_seed(batch["seed"])
    heads, longest = batch["heads"][0], max(batch["q_lens"])
    options = {"causal": draw(st.booleans())}
    if draw(st.booleans()):
        options["softmax_scale"] = draw(st.floats(0.1, 3.0))
    if draw(st.booleans()):
        options["window"] = draw(st.integers(1, 13))
    if draw(st.booleans()):
        options["soft_cap"] = draw(st.floats(0.2, 5.0))
    if draw(st.booleans()):
        shape = (heads,) if draw(st.booleans()) else (len(sequences), heads)
        options["alibi_slopes"] = torch.rand(shape, generator=generator)
    if draw(st.booleans()):
        options["sink"] = torch.randn(heads, generator=generator)
    if options["causal"] and draw(st.booleans()):
        options["tree_mask"] = torch.rand(len(sequences), longest, longest, generator=generator) < 0.5
    if draw(st.booleans()):
        options["p_quant"] = "e4m3"
    return batch, options


@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_any_combination_of_options(small_batch, problem):
    batch, options = problem
    case = small_batch(**batch)
    out, lse = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e", **options)
    case.check(out, lse, **options)


ALONE = {
    "causal": {},
    "bidirectional": {"causal": False},
    "scale": {"softmax_scale": 0.3},
    "window 1": {"window": 1},
    "window 4": {"window": 4},
    "window longer than all": {"window": 99},
    "window without causal": {"window": 2, "causal": False},
    "soft cap": {"soft_cap": 0.7},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 1.0])},
    "alibi per sequence": {"alibi_slopes": torch.tensor([[0.5, 0.25, 0.125, 1.0], [2.0, 0.0, 0.1, 0.3]])},
    "alibi without causal": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 1.0]), "causal": False},
    "sink": {"sink": torch.tensor([0.5, -3.0, 4.0, -math.inf])},
    "P in e4m3": {"p_quant": "e4m3"},
}


@pytest.mark.parametrize("options", ALONE.values(), ids=ALONE.keys())
def test_each_option_alone(small_batch, fresh_seed, options):
    case = small_batch(fresh_seed, [9, 14], [3, 4], page=4, heads=(4, 2))
    out, lse = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e", **options)
    case.check(out, lse, **options)
    plain, _ = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e")
    inert = options == {} or options.get("window") == 99
    assert torch.equal(out, plain) == inert, "an option without effect is not tested by this case"


def test_query_tokens_are_equal_shares_of_the_rows(small_batch):
    case = small_batch(5, [4, 7, 0], [2, 2, 2])
    by_count = attention(*case.arguments(), query_tokens=2, lse_base="e")
    by_starts = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e")
    assert torch.equal(by_count[0], by_starts[0]) and torch.equal(by_count[1], by_starts[1])


def test_long_sequences_are_worked_on_in_parts_without_a_seam(small_batch, monkeypatch):
    case = small_batch(6, [19, 5], [7, 4], heads=(4, 2))
    options = {"window": 6, "alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 1.0])}
    whole = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e", **options)
    monkeypatch.setattr(paged_attention, "_SCORES_AT_ONCE", 80)
    parts = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e", **options)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


# ---- empty rows


def test_rows_without_keys_are_zero_with_lse_minus_infinity(small_batch):
    """Causal, 64 queries and 31 keys: the first 33 queries stand before the first key."""
    case = small_batch(7, [31], [64], page=16)
    out, lse = attention(*case.arguments(), query_tokens=64, lse_base="2")
    assert (out[:33] == 0).all() and (lse[:33] == -math.inf).all()
    assert (out[33:] != 0).all() and torch.isfinite(lse[33:]).all()
    seen, _ = attention(*case.arguments(), query_tokens=64, causal=False)
    assert (seen != 0).all(), "without the causal rule every query sees every key"


def test_empty_row_nan_marks_exactly_the_empty_rows(small_batch):
    case = small_batch(8, [2, 0], [4, 1])
    zero, lse = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e")
    nan, nan_lse = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e", empty_row="nan")
    empty = [0, 1, 4]
    assert torch.isnan(nan[empty]).all() and torch.equal(nan_lse, lse)
    assert torch.equal(nan[[2, 3]], zero[[2, 3]])


def test_a_sink_alone_is_a_zero_row_whose_lse_is_the_sink(small_batch):
    case = small_batch(9, [0], [1], heads=(2, 1))
    sink = torch.tensor([1.5, -math.inf])
    out, lse = attention(*case.arguments(), query_tokens=1, sink=sink, lse_base="e", empty_row="nan")
    assert (out[0, 0] == 0).all() and lse[0].tolist() == [1.5, -math.inf]
    assert torch.isnan(out[0, 1]).all(), "no key and no sink"


def test_rows_of_no_sequence_are_nan_and_their_queries_unread(small_batch):
    case = small_batch(10, [5, 4], [2, 1])
    q, *rest = case.arguments()
    padded = torch.cat([q, torch.full((3, *q.shape[1:]), math.nan)])
    out, lse = attention(padded, *rest, cu_seqlens_q=case.cu_seqlens_q(), lse_base="e")
    case.check(out, lse)
    assert torch.isnan(out[3:]).all() and torch.isnan(lse[3:]).all()


# ---- logarithms and extreme numbers


@pytest.mark.parametrize(("base", "want"), [("e", math.log(256)), ("2", 8.0)])
def test_lse_base(base, want):
    """256 scores of 0: the denominator is 256."""
    q, cache = torch.zeros(1, 2, 4), torch.randn(4, 64, 1, 4)
    _, lse = attention(q, cache, cache, torch.arange(4, dtype=torch.int32)[None], torch.tensor([256], dtype=torch.int32), query_tokens=1, lse_base=base)
    assert lse.flatten().tolist() == pytest.approx([want, want], rel=1e-14)


def test_lse_is_none_without_a_base(small_batch):
    assert attention(*small_batch(1, [3], [1]).arguments(), query_tokens=1)[1] is None


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_scores_of_any_size_stay_finite(small_batch, size):
    case = small_batch(11, [9], [2])
    case.q *= size * 100
    out, lse = attention(*case.arguments(), query_tokens=2, lse_base="e", sink=torch.tensor([size, -size]) * 500)
    assert torch.isfinite(out).all() and torch.isfinite(lse).all()


def test_p_quantisation_drops_what_e4m3_cannot_hold():
    """One dominant key and 8192 diffuse ones of weight 2^-18 each: times 256 they are half of the least e4m3 number, and round to 0."""
    keys = 8193
    k = torch.full((keys, 1, 1, 1), -18 * math.log(2.0), dtype=torch.float64)
    k[0] = 0
    v = torch.ones_like(k)
    ids, lens = torch.arange(keys, dtype=torch.int32)[None], torch.tensor([keys], dtype=torch.int32)
    exact, _ = attention(torch.ones(1, 1, 1, dtype=torch.float64), k, v, ids, lens, query_tokens=1)
    rounded, _ = attention(torch.ones(1, 1, 1, dtype=torch.float64), k, v, ids, lens, query_tokens=1, p_quant="e4m3")
    assert float(exact) == pytest.approx(1.0)
    assert float(rounded) == pytest.approx(1 / (1 + 8192 * 2.0**-18), rel=1e-12)


# ---- options that mean nothing


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["soft_cap", "softmax_scale"])
def test_scales_of_scores_must_be_finite_and_positive(small_batch, name, value):
    with pytest.raises(ValueError, match=f"{name}: .*must be finite and above 0"):
        attention(*small_batch(1, [3], [1]).arguments(), query_tokens=1, **{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window: 0; must be at least 1"),
        ({"p_quant": "e5m2"}, "p_quant: 'e5m2'; allowed"),
        ({"empty_row": "one"}, "empty_row: 'one'; allowed"),
        ({"lse_base": "10"}, "lse_base: '10'; allowed"),
        ({"sink": torch.tensor([math.nan, 0.0])}, "sink: must be finite or -inf"),
        ({"sink": torch.zeros(3)}, r"sink: shape \[3\]; must be \[2\]"),
        ({"alibi_slopes": torch.tensor([0.0, -math.inf])}, "alibi_slopes: must be finite"),
        ({"alibi_slopes": torch.zeros(2, 2)}, r"alibi_slopes: shape \[2, 2\]; must be \[2\] or \[1, 2\]"),
    ],
)
def test_options_out_of_range(small_batch, options, message):
    with pytest.raises(ValueError, match=message):
        attention(*small_batch(1, [3], [1]).arguments(), query_tokens=1, **options)


@pytest.mark.parametrize("name", ["sink", "alibi_slopes"])
def test_per_head_options_are_floating_point(small_batch, name):
    with pytest.raises(TypeError, match=f"{name}: torch.int64; must be a floating-point type"):
        attention(*small_batch(1, [3], [1]).arguments(), query_tokens=1, **{name: torch.zeros(2, dtype=torch.int64)})
