"""Device integers: width, overflow, and truncating division."""

import pytest
import torch

from tle_attn.emu import EmulationError, OutOfBounds
from tle_attn.emu.integers import Int32, Int64, device_range


def test_division_truncates_as_on_the_device(generator):
    for _ in range(200):
        a, b = (int(torch.randint(-50, 50, (), generator=generator)) for _ in range(2))
        if b:
            quotient = int(a / b)
            for x, y in ((Int32(a), b), (a, Int32(b)), (Int32(a), Int32(b))):
                assert x // y == quotient and x % y == a - quotient * b and type(x // y) is Int32


def test_width_of_results():
    assert type(Int32(3) + 4) is Int32
    assert type(Int32(3) * Int64(4)) is Int64 and type(4 - Int64(3)) is Int64
    assert type(Int32(3) + 2**31) is Int64, "a literal that needs 64 bits widens"
    assert type(-Int32(3)) is Int32 and Int32(5) & 6 == 4 and Int32(1) << 4 == 16 and Int32(-9) >> 1 == -5


@pytest.mark.parametrize("overflow", [
    lambda: Int32(2**30) * 2, lambda: Int32(2**31 - 1) + 1, lambda: Int32(-(2**31)) - 1, lambda: -Int32(-(2**31)), lambda: 2**20 * Int32(2**11),
    lambda: Int32(1) << 31, lambda: Int64(2**62) * 2,
])  # fmt: skip
def test_overflow_is_an_error(overflow):
    with pytest.raises(OutOfBounds, match="-bit integer overflow"):
        overflow()


def test_widened_operands_do_not_overflow():
    assert Int64(2**31) * Int32(4) == 2**33


def test_division_by_zero_is_an_error():
    with pytest.raises(EmulationError, match="division by zero"):
        Int32(3) // 0


def test_mixed_with_floats_is_fp32():
    half = Int32(3) / 2
    assert float(half.values) == 1.5 and (Int32(3) * 0.1).values.dtype == "float32"


def test_range_yields_device_integers():
    assert [type(i) for i in device_range(2)] == [Int32, Int32]
    assert list(device_range(Int32(1), 7, 2)) == [1, 3, 5]
    with pytest.raises(EmulationError, match="range takes integers"):
        device_range(1.5)
