"""Dequantisation scales: their layouts, and the factors that they give.

A stored value times its scale is the real value.  Layouts, all float32 unless noted:

=======  ========================  ==================================================================================
scale    shape                     meaning
=======  ========================  ==================================================================================
q        [1]                       one for all
q        [Hq]                      per query head
q        [T, Hq]                   per token (row of q) and head
q        [B, Hq, S]                per token and head, tokens counted within their sequence, S >= the longest
k, v     [1], [Hkv]                one for all, per kv head
k, v     [pages, R, Hkv, W]        per token and head: slot t of a page is row t // W, column t % W; R = ceil(page / W).
                                   As bytes (e4m3 or uint8) the last dimension is 4 W: extra rows of the cache itself
=======  ========================  ==================================================================================

None means 1.
"""

import torch
from torch import Tensor

from tle_attn.oracle.batch import SequenceView, longest_query

_BYTES = (torch.float8_e4m3fn, torch.uint8)


def _expect_float32(name: str, scale: Tensor) -> None:
    if scale.dtype != torch.float32:
        raise TypeError(f"{name}: {scale.dtype}; must be torch.float32")


def _is_per_tensor(scale: Tensor | None) -> bool:
    return scale is not None and scale.dim() <= 1 and scale.numel() == 1


def check_q_scale(q_scale: Tensor | None, q: Tensor, starts: list[int]) -> None:
    if q_scale is None:
        return
    _expect_float32("q_scale", q_scale)
    rows, heads = q.shape[:2]
    longest = longest_query(starts)
    shape = tuple(q_scale.shape)
    fits_sequences = len(shape) == 3 and shape[:2] == (len(starts) - 1, heads) and shape[2] >= longest
    if not (_is_per_tensor(q_scale) or shape in ((heads,), (rows, heads)) or fits_sequences):
        raise ValueError(f"q_scale: shape {list(shape)}; must be [1], [{heads}], [{rows}, {heads}] or [{len(starts) - 1}, {heads}, >= {longest}]")


def query_factors(q_scale: Tensor | None, sequence: SequenceView, heads: slice) -> Tensor | float:
    """Factors of a sequence's queries, to multiply with [heads, queries]."""
    if q_scale is None:
        return 1.0
    wide = q_scale.double()
    if _is_per_tensor(q_scale):
        return wide.reshape(1, 1)
    if q_scale.dim() == 1:
        return wide[heads, None]
    if q_scale.dim() == 2:
        return wide[sequence.rows, heads].T
    return wide[sequence.index, heads, : sequence.num_queries]


def check_cache_scale(name: str, scale: Tensor | None, cache: Tensor) -> Tensor | None:
    """The scale of K or V as float32: bytes become the numbers that they spell."""
    if scale is None:
        return None
    if scale.dtype in _BYTES and scale.dim() == 4 and scale.shape[3] % 4 == 0:
        if scale.stride(3) != 1 or scale.storage_offset() % 4 or any(stride % 4 for stride in scale.stride()[:3]):
            strides = list(scale.stride())
            raise ValueError(f"{name}: bytes with strides {strides}; float32 numbers need a last stride of 1, and multiples of 4 in the others and the offset")
        scale = scale.view(torch.float32)
    _expect_float32(name, scale)
    pages, page, heads = cache.shape[:3]
    shape = tuple(scale.shape)
    per_token = len(shape) == 4 and shape[3] > 0 and shape[:3] == (pages, -(-page // shape[3]), heads)
    if not (_is_per_tensor(scale) or shape == (heads,) or per_token):
        raise ValueError(f"{name}: shape {list(shape)} as float32; must be [1], [{heads}] or [{pages}, ceil({page} / W), {heads}, W]")
    return scale


def token_factors(scale: Tensor | None, sequence: SequenceView, head: int) -> Tensor | float:
    """Factors of a sequence's keys or values for one kv head, to multiply with [keys]."""
    if scale is None:
        return 1.0
    if _is_per_tensor(scale):
        return scale.double().reshape(1)
    if scale.dim() == 1:
        return scale.double()[head : head + 1]
    slots = scale[sequence.pages, :, head].flatten(1)[:, : sequence.page_size]
    return sequence.live(slots).double()
