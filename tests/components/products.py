"""How exact the products of a target are."""

from tle_attn.spec import DType


def product_rms(dtype: DType, target: str) -> float:
    """Relative RMS error that a product may have: fp32 sums, but for fp8 on tensor cores, which add with about 13 bits (docs/performance.md, accuracy of prefill)."""
    return 5e-4 if dtype is DType.FP8 and target == "gluon" else 1e-5
