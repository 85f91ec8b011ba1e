"""Element types: how they are stored and which values they can hold.

Float tiles are computed as float32 arrays whose elements the type can represent; `encode` and `decode` go between values and
stored bits.
"""

import numpy as np


class DType:
    """One element type of the dialect; compared by identity."""

    __slots__ = ("name", "np", "nbytes", "is_float", "low", "high")

    def __init__(self, name: str, np_type: type, nbytes: int, is_float: bool):
        self.name, self.np, self.nbytes, self.is_float = name, np.dtype(np_type), nbytes, is_float
        if self.np.kind in "iu":  #: range of an integer type
            self.low, self.high = int(np.iinfo(np_type).min), int(np.iinfo(np_type).max)

    def __repr__(self) -> str:
        return self.name

    @property
    def primitive_bitwidth(self) -> int:
        return self.nbytes * 8


BF16 = DType("bf16", np.uint16, 2, True)
F16 = DType("f16", np.float16, 2, True)
F32 = DType("f32", np.float32, 4, True)
FP8 = DType("fp8", np.uint8, 1, True)  # e4m3fn
I32 = DType("i32", np.int32, 4, False)
I64 = DType("i64", np.int64, 8, False)
U8 = DType("u8", np.uint8, 1, False)
I1 = DType("i1", np.bool_, 1, False)  # conditions; never in memory

BY_NAME = {dtype.name: dtype for dtype in (BF16, F16, F32, FP8, I32, I64, U8)}


def round_bf16(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to the nearest bfloat16, ties to even; still float32."""
    bits = np.asarray(values, np.float32, order="C").view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    return np.where(np.isnan(values), np.float32("nan"), rounded)


def _e4m3_values() -> np.ndarray:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[(code & 0x7F) == 0x7F] = np.nan
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.float32)


_E4M3 = _e4m3_values()


def _encode_e4m3(values: np.ndarray) -> np.ndarray:
    """Nearest e4m3, ties to even, saturating at 448 (infinities too), as cvt.rn.satfinite does."""
    values = np.asarray(values, np.float32, order="C")
    magnitude = np.minimum(np.abs(values), np.float32(448.0))
    bits = magnitude.view(np.uint32)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - np.uint32(120 << 3)
    subnormal = np.rint(magnitude * np.float32(512.0))  # steps of 2**-9; 8 of them are the smallest normal number
    nan = np.isnan(values)
    code = np.where(magnitude < np.float32(2.0**-6), np.where(nan, 0, subnormal).astype(np.uint32), normal)
    code = np.where(nan, 0x7F, code).astype(np.uint8)
    return code | (np.signbit(values).astype(np.uint8) << 7)


def decode(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """Stored bits to values: float32 for every float type, else the integer type itself."""
    if dtype is BF16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype is FP8:
        return _E4M3[bits]
    return bits.astype(np.float32) if dtype is F16 else bits


def encode(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Values to stored bits, rounded as the device does."""
    if dtype is BF16:
        return (round_bf16(values).view(np.uint32) >> 16).astype(np.uint16)
    if dtype is FP8:
        return _encode_e4m3(values)
    return np.asarray(values, dtype.np)


def representable(values: np.ndarray, dtype: DType) -> np.ndarray:
    """float32 values rounded to what a float type holds."""
    if dtype is F32:
        return np.asarray(values, np.float32)
    if dtype is BF16:
        return round_bf16(values)
    return decode(encode(values, dtype), dtype)
