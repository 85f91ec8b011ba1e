"""Rounding to FP8 (e4m3: 4 exponent bits, 3 mantissa bits, no infinity, largest finite value 448)."""

import torch
from torch import Tensor

E4M3_MAX = 448.0
#: Attention weights, at most 1, are multiplied by this before they are rounded to e4m3, so that small ones keep their bits.
P_SCALE = 256.0


def quantise_e4m3(x: Tensor, axis: int | tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    """Quantise symmetrically so that the largest magnitude becomes 448: `x` is about `values.double() * scale`.

    `axis` names the dimensions that share a scale: the last one of a cache [pages, page, heads, dim] gives a scale per
    token and head, (0, 1, 3) a scale per head, None one scale for all, of shape [1].  The scale is float32, without those
    dimensions; where all is zero it is 1.  Non-finite input is a ValueError: there is no scale for it.
    """
    if not x.is_floating_point():
        raise TypeError(f"x: expected a floating-point tensor, got {x.dtype}")
    if not torch.isfinite(x).all():
        raise ValueError("x: has NaN or infinity, which no scale can map to e4m3")
    axes = tuple(range(x.dim())) if axis is None else (axis,) if isinstance(axis, int) else axis
    wide = x.double()
    largest = wide.abs().amax(dim=axes, keepdim=True)
    scale = torch.where(largest > 0, largest / E4M3_MAX, torch.ones_like(largest)).float()
    values = (wide / scale.double()).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return values, scale.reshape([1]) if axis is None else scale.squeeze(axes)


def round_weights_e4m3(p: Tensor) -> Tensor:
    """Attention weights in [0, 1] after a trip through e4m3 at P_SCALE, float64."""
    return (p * P_SCALE).to(torch.float8_e4m3fn).double() / P_SCALE
