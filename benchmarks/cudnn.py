"""torch's cuDNN attention on the same shape and timer: what a user of torch has without this library."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tle_attn.report.timing import Timer, capture


def cudnn_us(batch: int, length: int, heads: tuple[int, int], timer: Timer, head_dim: int = 128) -> float | None:
    """Microseconds of causal bf16 attention over `length` queries and keys; None where cuDNN does not take it."""
    query_heads, kv_heads = heads
    q, k, v = (torch.randn(batch, length, n, head_dim, dtype=torch.bfloat16, device="cuda").transpose(1, 2) for n in (query_heads, kv_heads, kv_heads))

    def attend() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=query_heads != kv_heads)

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        try:
            attend()
        except RuntimeError as error:
            print(f"cuDNN does not take {batch} x {length}, heads {heads}: {str(error).splitlines()[0]}", flush=True)
            return None
        return timer.us(capture(attend))
