"""Prefill operators of hpc-ops: causal attention of each sequence's last tokens, the lengths of a batch ragged.

Limits are wider than there: pages of 16 to 128 tokens, any number of query heads per key/value head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..spec.tasks import QUERY_TILE
from .hpc_common import HpcOpsError, QuantType, check_value_scale, e4m3, in_their_words, quant_number

_in_paged_words = in_their_words(kv_lens="seqlens_kvcache")
_in_contiguous_words = in_their_words(kv_lens="seqlens_q", k_cache="k", v_cache="v")


@_in_contiguous_words
def attention_prefill_bf16(
    q: Tensor, k: Tensor, v: Tensor, seqlens_q: Tensor, cu_seqlens_q: Tensor, max_seqlens_q: int, output: Tensor | None = None
) -> Tensor:
    """Causal attention of sequences to themselves, bfloat16, K and V without pages.

    Args:
        q: bf16 [rows, query heads, 128]; k, v: bf16 [rows, kv heads, 128]; rows of a sequence one after the other, any strides that TMA takes.
        seqlens_q: int32 [batch], tokens of each sequence.
        cu_seqlens_q: int32 [batch + 1], the row where each sequence starts, and where the last one ends.
        max_seqlens_q: tokens of the longest sequence; checked, and not needed otherwise.
        output: bf16 [rows, query heads, 128] to write into; a new tensor if None.  Rows behind the last sequence stay as they are.

    Returns:
        `output`, or the new tensor.

    Raises:
        HpcOpsError: an argument is out of range; nothing was launched.
        TargetUnavailable: no Hopper GPU holds the tensors.
    """
    _check_longest(max_seqlens_q)
    tensors = (q, k, v, cu_seqlens_q, seqlens_q)
    if output is None:
        return torch.ops.tle_attn.attention_prefill_contiguous_bf16(*tensors)
    torch.ops.tle_attn.attention_prefill_contiguous_bf16_out(*tensors, out=output)
    return output


@_in_paged_words
def attention_with_kvcache_prefill_bf16(
    q: Tensor, kcache: Tensor, vcache: Tensor, cu_seqlens_q: Tensor, block_ids: Tensor, seqlens_kvcache: Tensor, max_seqlens_q: int, output: Tensor | None = None
) -> Tensor:
    """Attention of each sequence's newest tokens over its paged cache, bfloat16.

    Args:
        q: bf16 [rows, query heads, 128], any strides that TMA takes.
        kcache, vcache: bf16 [pages, page, kv heads, 128], any strides that TMA takes (NHD, HND, K or V of a joint cache).  They are only read, and
            unused slots of a last page may hold anything.
        cu_seqlens_q: int32 [batch + 1], the row where each sequence's queries start, and where the last one's end.
        block_ids: int32 [batch, pages of the longest sequence]; entries past a sequence's last page are not read.
        seqlens_kvcache: int32 [batch], keys of each sequence, its queries' own included.
        max_seqlens_q: queries of the longest sequence; checked, and not needed otherwise.
        output: bf16 [rows, query heads, 128] to write into; a new tensor if None.  Rows behind the last sequence stay as they are.

    Returns:
        `output`, or the new tensor.  A query that sees no key gets zeros.

    Raises:
        HpcOpsError: an argument is out of range; nothing was launched.
        TargetUnavailable: no Hopper GPU holds the tensors.
    """
    _check_longest(max_seqlens_q)
    tensors = (q, kcache, vcache, block_ids, cu_seqlens_q, seqlens_kvcache)
    if output is None:
        return torch.ops.tle_attn.attention_prefill_bf16(*tensors)
    torch.ops.tle_attn.attention_prefill_bf16_out(*tensors, out=output)
    return output


@_in_paged_words
def attention_with_kvcache_prefill_fp8(
    q: Tensor,
    kcache: Tensor,
    vcache: Tensor,
    qscale: Tensor,
    kscale: Tensor,
    vscale: Tensor,
    cu_seqlens_q: Tensor,
    block_ids: Tensor,
    seqlens_kvcache: Tensor,
    max_seqlens_q: int,
    quant_type: QuantType = QuantType.QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR,
    output: Tensor | None = None,
) -> Tensor:
    """softmax(Q K^T qscale kscale / sqrt(128)) V vscale, with Q, K and V in float8_e4m3fn and a bf16 result; else as `attention_with_kvcache_prefill_bf16`.

    Args:
        kcache, vcache: e4m3, or another type of one byte that holds e4m3.
        qscale: float32 [batch, query heads, max_seqlens_q or more], a sequence's queries from 0 on.
        kscale: float32 [1], or with the first quant type one of every token and head: float32 [pages, page / 32, kv heads, 32], or the same bytes as
            e4m3 [pages, page / 32, kv heads, 128].
        vscale: float32 [1], or [kv heads] with the first quant type.
        quant_type: the first two, or their numbers.
    """
    return _fp8(q, kcache, vcache, qscale, kscale, vscale, cu_seqlens_q, block_ids, seqlens_kvcache, max_seqlens_q, quant_type, None, output)


@_in_paged_words
def attention_with_kvcache_blocksparse_prefill_fp8(
    q: Tensor,
    kcache: Tensor,
    vcache: Tensor,
    qscale: Tensor,
    kscale: Tensor,
    vscale: Tensor,
    cu_seqlens_q: Tensor,
    block_ids: Tensor,
    seqlens_kvcache: Tensor,
    max_seqlens_q: int,
    quant_type: QuantType = QuantType.QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR,
    block_mask: Tensor | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """`attention_with_kvcache_prefill_fp8` for the tiles of 128 x 128 that a mask keeps.

    Args:
        block_mask: uint8 [batch, query heads, ceil(max_seqlens_q / 128), key tiles], contiguous; a row is a tile of a sequence's own queries, a column a
            tile of its keys, 0 drops it.  Causality comes on top.  If it has fewer columns than a sequence has key tiles, the first one behind it
            counts as kept and later ones as dropped.  None: every tile is kept.
    """
    if block_mask is not None:
        wanted = (len(seqlens_kvcache), q.shape[1], -(-max_seqlens_q // QUERY_TILE))
        if block_mask.dim() != 4 or tuple(block_mask.shape[:3]) != wanted or not block_mask.is_contiguous():
            shape, strides = tuple(block_mask.shape), tuple(block_mask.stride())
            raise HpcOpsError(f"block_mask: shape {shape}, strides {strides} where a contiguous [{', '.join(map(str, wanted))}, key tiles] is wanted")
    return _fp8(q, kcache, vcache, qscale, kscale, vscale, cu_seqlens_q, block_ids, seqlens_kvcache, max_seqlens_q, quant_type, block_mask, output)


def _fp8(
    q: Tensor, kcache: Tensor, vcache: Tensor, qscale: Tensor, kscale: Tensor, vscale: Tensor, cu_seqlens_q: Tensor, block_ids: Tensor,
    seqlens_kvcache: Tensor, max_seqlens_q: int, quant_type: QuantType, block_mask: Tensor | None, output: Tensor | None,
) -> Tensor:
    _check_longest(max_seqlens_q)
    number = quant_number(quant_type)
    if (kscale.dim() == 4) != (number == 0):
        raise HpcOpsError(f"kscale: shape {tuple(kscale.shape)} where quant_type {number} wants " + ("[pages, page / 32, num_head_kv, 32]", "[1]")[number])
    check_value_scale(vscale, number)
    if qscale.dim() == 3 and qscale.shape[2] < max_seqlens_q:
        raise HpcOpsError(f"qscale: {qscale.shape[2]} in the last dimension where max_seqlens_q is {max_seqlens_q}")
    tensors = (q, e4m3(kcache), e4m3(vcache), block_ids, cu_seqlens_q, seqlens_kvcache, qscale, e4m3(kscale), vscale)
    if output is None:
        return torch.ops.tle_attn.attention_prefill_fp8(*tensors, block_mask=block_mask)
    torch.ops.tle_attn.attention_prefill_fp8_out(*tensors, block_mask=block_mask, out=output)
    return output


def _check_longest(max_seqlens_q: int) -> None:
    if max_seqlens_q < 0:
        raise HpcOpsError(f"max_seqlens_q: {max_seqlens_q} where a number from 0 up is wanted")
