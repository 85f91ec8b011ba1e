"""Comparisons accept what they should, refuse what they should, and say where."""

import math

import pytest
import torch

from tle_attn.testing import compare, compare_lse, relative_rms, rms_of_rows


@pytest.fixture
def ref():
    return torch.randn(40, 8, 16, dtype=torch.float64)


def test_relative_rms_is_the_size_of_the_error():
    ref = torch.tensor([3.0, -4.0])
    assert relative_rms(ref + torch.tensor([0.3, 0.4]), ref) == pytest.approx(0.1)
    assert relative_rms(torch.zeros(3), torch.zeros(3)) == 0
    assert relative_rms(torch.zeros(0), torch.zeros(0)) == 0
    assert relative_rms(torch.tensor([0.0, 1e-30]), torch.zeros(2)) == math.inf
    assert relative_rms(torch.tensor([1.0, math.nan]), torch.ones(2)) == math.inf
    assert relative_rms(torch.ones(2), torch.tensor([1.0, math.nan])) == math.inf
    assert relative_rms(torch.tensor([1.0, math.inf]), torch.ones(2)) == math.inf


def test_rounding_to_bf16_passes_at_its_size_and_not_below(ref):
    compare(ref.bfloat16(), ref, rms=2e-3)
    with pytest.raises(AssertionError, match=r"relative RMS 0\.001"):
        compare(ref.bfloat16(), ref, rms=1e-3)


def test_one_wrong_row_among_many_is_found_and_named(ref):
    out = ref.clone()
    out[17, 3] = -out[17, 3]
    with pytest.raises(AssertionError) as caught:
        compare(out, ref, rms=0.2, name_row=lambda row: f"sequence {row}")
    message = str(caught.value)
    assert "1 of 320 rows above 0.8" in message and "first bad row [17, 3] (sequence 17, head 3): relative RMS 2" in message
    assert f"reference [{round(float(ref[17, 3, 0]), 4)}" in message


def test_small_errors_everywhere_add_up(ref):
    out = ref * 1.02
    compare(out, ref, rms=0.021)
    with pytest.raises(AssertionError, match=r"relative RMS 0.02 \(allowed 0.01\); 0 of 320 rows above 0.04"):
        compare(out, ref, rms=0.01)


def test_every_row_counts_alike(ref):
    """Neither one row that outweighs all others hides them, nor does its error stand for theirs; rows of zeros do not count."""
    ref[0, 0] *= 1e4
    ref[20:] = 0
    assert relative_rms(ref * 1.01, ref) == pytest.approx(0.01) == rms_of_rows(ref * 1.01, ref)
    out = ref.clone()
    out[1:] *= 1.05
    assert relative_rms(out, ref) < 1e-3
    with pytest.raises(AssertionError, match=r"relative RMS 0.0487 \(allowed 0.02\); 0 of 320 rows"):
        compare(out, ref, rms=0.02)
    out = ref.clone()
    out[0, 0] *= 1.05
    assert relative_rms(out, ref) > 0.04
    compare(out, ref, rms=0.02)


def test_rows_of_zeros_and_of_nan_are_exact(ref):
    ref[2, 1], ref[5] = 0, math.nan
    compare(ref.clone(), ref, rms=0)
    for place, value in (((2, 1, 3), 1e-30), ((5, 0, 0), 0.0), ((6, 0, 0), math.nan), ((6, 0, 0), math.inf)):
        out = ref.clone()
        out[place] = value
        with pytest.raises(AssertionError, match=rf"first bad row \[{place[0]}, {place[1]}\]: relative RMS inf"):
            compare(out, ref, rms=0.1)


def test_an_unwritten_row_says_so(ref):
    out = ref.clone()
    out[39, 7] = math.nan
    with pytest.raises(AssertionError, match="16 NaN and 0 infinities in 16 elements"):
        compare(out, ref, rms=0.1)


def test_shapes_must_be_equal(ref):
    with pytest.raises(AssertionError, match=r"out has shape \[1, 8, 16\], the reference \[40, 8, 16\]"):
        compare(ref[:1], ref, rms=1)
    with pytest.raises(AssertionError, match="lse has shape"):
        compare_lse(ref[:1, 0], ref[0], atol=1)


def test_lse_is_close_and_its_infinities_exact():
    ref = torch.tensor([[0.5, -math.inf], [-2.0, math.nan]])[:1]
    compare_lse(ref + 1e-4, ref, atol=1e-3)
    for place, value in (((0, 0), 0.502), ((0, 0), math.nan), ((0, 0), -math.inf), ((0, 1), -1e30), ((0, 1), math.nan), ((0, 1), math.inf)):
        lse = ref.clone()
        lse[place] = value
        with pytest.raises(AssertionError, match=rf"1 of 2 off .*; first \[0, {place[1]}\] \(row 0, head {place[1]}\): .*, reference"):
            compare_lse(lse, ref, atol=1e-3, name_row=lambda row: f"row {row}")


def test_lse_of_rows_that_have_none():
    """NaN in both is equal; in one of them it is not."""
    ref = torch.tensor([[0.5, math.nan]])
    compare_lse(ref.clone(), ref, atol=1e-3)
    for lse in (torch.tensor([[0.5, 0.0]]), torch.tensor([[0.5, -math.inf]]), torch.tensor([[math.nan, math.nan]])):
        with pytest.raises(AssertionError, match="1 of 2 off"):
            compare_lse(lse, ref, atol=1e-3)


def test_a_row_may_be_off_by_its_own_error_besides(ref):
    ref[2, 1] = 0
    out, row_error = ref.clone(), torch.zeros(ref.shape[:2], dtype=torch.float64)
    out[17, 3, 5] += 1.5 * ref[17, 3].norm()
    row_error[17, 3], row_error[2, 1] = 1.5 * ref[17, 3].norm(), 1.0
    with pytest.raises(AssertionError, match="1 of 320 rows above 0.4"):
        compare(out, ref, rms=0.5, row_rms=0.4)
    compare(out, ref, rms=0.5, row_rms=0.4, row_error=row_error)
    for wrong in ((17, 3, 5), (2, 1, 0)):  # further off than that, and a row of zeros
        further = out.clone()
        further[wrong] += ref[17, 3].norm()
        with pytest.raises(AssertionError, match=rf"1 of 320 rows above 0.4, beside the roundings of weights\n  first bad row \[{wrong[0]}, {wrong[1]}\]"):
            compare(further, ref, rms=0.5, row_rms=0.4, row_error=row_error)
