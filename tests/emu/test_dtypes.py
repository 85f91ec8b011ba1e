"""Element types against torch's conversions."""

import numpy as np
import pytest
import torch

from tle_attn.emu import BF16, F16, F32, FP8, U8
from tle_attn.emu.dtypes import decode, encode, representable

TORCH = {BF16: torch.bfloat16, F16: torch.float16, FP8: torch.float8_e4m3fn}
BITS = {BF16: torch.int16, F16: torch.int16, FP8: torch.uint8}


def samples(generator: torch.Generator) -> torch.Tensor:
    """Values of all magnitudes, values half-way between two neighbours, zeros."""
    spread = torch.randn(20000, generator=generator) * 2.0 ** torch.randint(-12, 10, (20000,), generator=generator)
    halves = torch.arange(0, 4096) / 2.0**14  # ties of e4m3 subnormals and of the small normals
    return torch.cat([spread, halves, -halves, halves * 2.0**12, torch.tensor([0.0, -0.0, 447.9, 448.0, 463.9])])


@pytest.mark.parametrize("dtype", [BF16, F16, FP8], ids=str)
def test_encode_rounds_as_torch_does(generator, dtype):
    x = samples(generator)
    expected = x.clamp(-448, 448).to(TORCH[dtype]) if dtype is FP8 else x.to(TORCH[dtype])
    assert np.array_equal(encode(x.numpy(), dtype).view(BITS[dtype] is torch.uint8 and np.uint8 or np.int16), expected.view(BITS[dtype]).numpy())


def test_e4m3_saturates_and_keeps_nan():
    x = np.array([448.0, 449.0, 480.0, 1e30, np.inf, -np.inf, np.nan], np.float32)
    assert encode(x, FP8).tolist() == [0x7E] * 5 + [0xFE, 0x7F]


@pytest.mark.parametrize("dtype, count", [(BF16, 1 << 16), (F16, 1 << 16), (FP8, 256)], ids=str)
def test_decode_of_every_code(dtype, count):
    codes = np.arange(count, dtype=np.uint8 if dtype is FP8 else np.uint16)
    expected = torch.from_numpy(codes.view(np.uint8 if dtype is FP8 else np.int16)).view(TORCH[dtype]).float().numpy()
    assert np.array_equal(decode(codes.view(dtype.np), dtype), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [BF16, F16, FP8], ids=str)
def test_representable_is_idempotent_and_keeps_shape(generator, dtype):
    x = torch.randn(3, 5, generator=generator).numpy()
    once = representable(x, dtype)
    assert once.shape == (3, 5) and once.dtype == np.float32
    assert np.array_equal(representable(once, dtype), once)
    assert representable(np.asarray(1.3, np.float32), dtype).shape == ()


def test_plain_types_pass_through():
    assert decode(np.array([200], np.uint8), U8).tolist() == [200]
    assert encode(np.array([1.5]), F32).dtype == np.float32
