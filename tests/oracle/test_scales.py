"""Scales: every layout says the same as multiplying the numbers beforehand, and the shapes that are refused."""

import pytest
import torch

from tle_attn.oracle import attention

KV_LENS, Q_LENS, HEADS, PAGE, DIM = [37, 5], [3, 2], (4, 2), 48, 8


@pytest.fixture
def case(small_batch, fresh_seed):
    return small_batch(fresh_seed, KV_LENS, Q_LENS, page=PAGE, heads=HEADS, dims=(DIM, 3))


def _scale(*shape):
    return torch.rand(shape) + 0.5


def _assert_same(case, scaled, **options):
    got = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e", **options)
    case.q, case.k, case.v = scaled
    want = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), lse_base="e")
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (5, 4)])
def test_q_scale_over_rows_and_heads(case, shape):
    scale = _scale(*shape)
    _assert_same(case, (case.q * scale.expand(5, 4)[:, :, None], case.k, case.v), q_scale=scale)


def test_q_scale_per_sequence(case):
    scale = _scale(2, 4, 6)
    by_row = torch.cat([scale[0, :, :3].T, scale[1, :, :2].T])
    _assert_same(case, (case.q * by_row[:, :, None], case.k, case.v), q_scale=scale)


@pytest.mark.parametrize("shape", [(1,), (2,)])
def test_k_and_v_scale_per_tensor_and_per_head(case, shape):
    k_scale, v_scale = _scale(*shape), _scale(*shape) - 1.0
    _assert_same(case, (case.q, case.k * k_scale.expand(2)[:, None], case.v * v_scale.expand(2)[:, None]), k_scale=k_scale, v_scale=v_scale)


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("width", [16, 32, 64])
def test_scale_per_token_and_head(case, width, as_bytes, name):
    """Slot t is row t // width, column t % width; the rest of a last row is not read."""
    rows = -(-PAGE // width)
    scale = _scale(len(case.k), rows, 2, width)
    by_slot = torch.stack([scale[:, t // width, :, t % width] for t in range(PAGE)], dim=1)
    given = torch.full((len(case.k), rows + 1, 2, width), torch.nan)[:, :rows].copy_(scale)
    if width == 64:
        given[..., PAGE:] = torch.nan
    given = given.view(torch.float8_e4m3fn) if as_bytes else given
    scaled = (case.q, case.k * by_slot[..., None], case.v) if name == "k_scale" else (case.q, case.k, case.v * by_slot[..., None])
    _assert_same(case, scaled, **{name: given})


def test_scales_of_slots_without_a_token_are_not_read(case):
    """Of K and of V: NaN there."""
    k_scale, v_scale = _scale(len(case.k), 2, 2, 32), _scale(len(case.k), 2, 2, 32)
    want = attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), k_scale=k_scale, v_scale=v_scale)[0]
    live = torch.zeros(len(case.k), 64, dtype=torch.bool)
    ids = case.arguments()[3]
    for b, length in enumerate(KV_LENS):
        for t in range(length):
            live[ids[b, t // PAGE].long(), t % PAGE] = True
    unused = ~live.view(-1, 2, 1, 32).expand(-1, 2, 2, 32)
    k_scale[unused], v_scale[unused] = torch.nan, torch.nan
    assert torch.equal(attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), k_scale=k_scale, v_scale=v_scale)[0], want)


@pytest.mark.parametrize(
    ("name", "scale", "error", "message"),
    [
        ("q_scale", _scale(1).double(), TypeError, "q_scale: torch.float64; must be torch.float32"),
        ("q_scale", _scale(5), ValueError, r"q_scale: shape \[5\]; must be \[1\], \[4\], \[5, 4\] or \[2, 4, >= 3\]"),
        ("q_scale", _scale(2, 4, 2), ValueError, r"q_scale: shape \[2, 4, 2\]; must be"),
        ("k_scale", _scale(1).bfloat16(), TypeError, "k_scale: torch.bfloat16; must be torch.float32"),
        ("k_scale", _scale(4), ValueError, r"k_scale: shape \[4\] as float32; must be \[1\], \[2\] or \[4, ceil\(48 / W\), 2, W\]"),
        ("k_scale", _scale(4, 1, 2, 32), ValueError, "k_scale: shape"),
        ("k_scale", _scale(4, 2, 2, 33).view(torch.uint8)[..., 1:129], ValueError, "k_scale: bytes with strides"),
        ("v_scale", _scale(4, 1, 2, 32), ValueError, "v_scale: shape"),
        ("v_scale", _scale(4, 2, 2, 33).view(torch.uint8)[..., 1:129], ValueError, "v_scale: bytes with strides"),
        ("v_scale", _scale(1).half(), TypeError, "v_scale: torch.float16; must be torch.float32"),
        ("v_scale", _scale(4), ValueError, r"v_scale: shape \[4\] as float32; must be \[1\], \[2\] or \[4, ceil\(48 / W\), 2, W\]"),
    ],
)
def test_scales_that_do_not_fit(case, name, scale, error, message):
    assert len(case.k) == 4
    if scale.dtype == torch.uint8:
        assert scale.shape == (4, 2, 2, 128)
    with pytest.raises(error, match=message):
        attention(*case.arguments(), cu_seqlens_q=case.cu_seqlens_q(), **{name: scale})
