"""e4m3 rounding and scales."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tle_attn.oracle import E4M3_MAX, quantise_e4m3
from tle_attn.oracle.quantise import round_weights_e4m3


@given(p=st.one_of(st.floats(0, 1), st.floats(0, 2**-15)))
def test_weights_round_to_the_nearest_e4m3_number(round_e4m3, p):
    # The rounding passes through float32, as the kernels' own weights do.
    as_float32 = float(torch.tensor(p, dtype=torch.float32))
    assert float(round_weights_e4m3(torch.tensor(p, dtype=torch.float64))) * 256 == round_e4m3(as_float32 * 256)


@pytest.mark.parametrize(
    ("axis", "shape"),
    [(None, (1,)), (3, (2, 3, 4)), (-1, (2, 3, 4)), ((0, 1, 3), (4,)), (0, (3, 4, 5))],
)
def test_values_times_scale_are_the_numbers(axis, shape):
    x = torch.randn(2, 3, 4, 5) * torch.tensor([1e-3, 1.0, 1e2, 1e-6])[:, None]
    values, scale = quantise_e4m3(x, axis)
    assert values.dtype == torch.float8_e4m3fn and values.shape == x.shape
    assert scale.dtype == torch.float32 and scale.shape == shape
    axes = (0, 1, 2, 3) if axis is None else (axis,) if isinstance(axis, int) else axis
    wide = scale.double().reshape([1 if d in [a % 4 for a in axes] else n for d, n in enumerate(x.shape)])
    error = (values.double() * wide - x.double()).abs()
    # Half a step: 2^-4 relative for normal numbers, 2^-10 absolute below them.
    assert (error <= torch.maximum(x.abs().double() * 2**-4, wide * 2**-10) * (1 + 1e-6)).all()
    assert (values.double().abs().amax(axes) == E4M3_MAX).all(), "the range is used up"


def test_zeros_have_scale_one():
    values, scale = quantise_e4m3(torch.zeros(3, 4), axis=1)
    assert (values.double() == 0).all() and scale.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_scale(bad):
    with pytest.raises(ValueError, match="x: has NaN or infinity"):
        quantise_e4m3(torch.tensor([1.0, bad]))


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"x: expected a floating-point tensor, got torch.int32"):
        quantise_e4m3(torch.zeros(2, dtype=torch.int32))
