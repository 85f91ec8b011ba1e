"""Decode operators of hpc-ops.

In these functions `mtp` is the number of draft tokens, so every request has mtp + 1 query tokens; only in `assign_attention_decode_task` is it
the number of query tokens itself.  Limits are wider than there: pages of 16 to 128 tokens, mtp 0 to 4 for every type, any number of query heads
per key/value head that makes at most 64 query rows with the query tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from ..ops.decode import MAX_QUERY_TOKENS, TILE
from .hpc_common import HpcOpsError, QuantType, check_value_scale, e4m3, in_their_words, quant_number

_in_decode_words = in_their_words(**{"kv_lens": "num_seq_kvcache", "tasks:": "task_map:", "query_tokens": "(mtp + 1)"})


@_in_decode_words
def attention_decode_bf16(
    q: Tensor,
    kcache: Tensor,
    vcache: Tensor,
    block_ids: Tensor,
    num_seq_kvcache: Tensor,
    mtp: int = 0,
    new_kv_included: bool = False,
    splitk: bool = True,
    task_map: Tensor | None = None,
    split_flag: Tensor | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """Attention of each request's mtp + 1 newest tokens over its paged cache, bfloat16.

    Args:
        q: bf16 [batch * (mtp + 1), query heads, 128].
        kcache, vcache: bf16 [pages, page, kv heads, 128], any strides that TMA takes (NHD, HND, K or V of a joint cache).  They are only read, and
            unused slots of a last page may hold anything.
        block_ids: int32 [batch, pages of the longest request]; entries past a request's last page are not read.
        num_seq_kvcache: int32 [batch], tokens in the cache; with a task map they are those that the map was assigned for.
        mtp: draft tokens, 0 to 4.
        new_kv_included: whether num_seq_kvcache counts this step's mtp + 1 tokens.
        splitk: whether requests may be split; must be set with a task map.
        task_map: assigned by `assign_attention_decode_task` for this batch; without one, requests are split by a fixed rule.
        split_flag: taken and not used.
        output: bf16 [batch * (mtp + 1), query heads, 128] to write into; a new tensor if None.

    Returns:
        `output`, or the new tensor.  A request whose query sees no key gets zeros.

    Raises:
        HpcOpsError: an argument is out of range; nothing was launched.
        TargetUnavailable: no Hopper GPU holds the tensors.
    """
    tensors = (q, kcache, vcache, block_ids, num_seq_kvcache)
    options = _options(mtp, new_kv_included, splitk, task_map)
    if output is None:
        return torch.ops.tle_attn.attention_decode_bf16(*tensors, **options)
    torch.ops.tle_attn.attention_decode_bf16_out(*tensors, **options, out=output)
    return output


@_in_decode_words
def attention_decode_fp8(
    q: Tensor,
    kcache: Tensor,
    vcache: Tensor,
    block_ids: Tensor,
    num_seq_kvcache: Tensor,
    qscale: Tensor,
    kscale: Tensor,
    vscale: Tensor,
    mtp: int = 0,
    new_kv_included: bool = False,
    quant_type: QuantType = QuantType.QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR,
    splitk: bool = True,
    task_map: Tensor | None = None,
    split_flag: Tensor | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """softmax(Q K^T qscale kscale / sqrt(128)) V vscale, with Q, K and V in float8_e4m3fn and a bf16 result; else as `attention_decode_bf16`.

    Args:
        kcache, vcache: e4m3, or another type of one byte that holds e4m3.
        qscale: float32 [batch * (mtp + 1), query heads].
        kscale: float32 [1], or with the first quant type the scales of every token and head: the extra rows of the cache's own pages
            (e4m3 view [pages, page / 32, kv heads, 128] of float32 numbers), or float32 [pages, page / 32, kv heads, 32] anywhere.
        vscale: float32 [1], or [kv heads] with the first quant type.
        quant_type: the first two, or their numbers.
    """
    number = quant_number(quant_type)
    if (kscale.dim() == 4) != (number == 0):
        raise HpcOpsError(f"kscale: shape {tuple(kscale.shape)} where quant_type {number} wants " + ("[pages, page / 32, num_head_kv, 128 bytes]", "[1]")[number])
    check_value_scale(vscale, number)
    tensors = (q, e4m3(kcache), e4m3(vcache), block_ids, num_seq_kvcache, qscale, e4m3(kscale), vscale)
    options = _options(mtp, new_kv_included, splitk, task_map)
    if output is None:
        return torch.ops.tle_attn.attention_decode_fp8(*tensors, **options)
    torch.ops.tle_attn.attention_decode_fp8_out(*tensors, **options, out=output)
    return output


@_in_decode_words
def get_attention_decode_task_workspace(max_num_batch: int, max_seqlen: int, num_head_kv: int, min_process_len: int = 512) -> Tensor:
    """A task map, int8, for up to `max_num_batch` requests; its content is this library's own.

    Its size depends on neither `max_seqlen` nor `min_process_len`: there are as many tasks as the GPU works on at once, and one more for each
    request where requests alone exceed them.
    """
    return ops.new_task_map(max_num_batch, num_head_kv).view(torch.int8)


@_in_decode_words
def assign_attention_decode_task(
    num_seq_kvcache: Tensor, task_map: Tensor, num_head_kv: int, mtp: int, new_kv_included: bool, min_process_len: int = 512
) -> Tensor:
    """Fill `task_map` for these lengths, on the GPU and without a host read, so it can be captured; one call serves all layers of a step.

    Args:
        num_seq_kvcache: int32 [batch]; lengths on the host are copied to the task map's device.
        task_map: made by `get_attention_decode_task_workspace` for at least this batch.
        num_head_kv: key/value heads.
        mtp: query tokens per request, 1 to 5 (here it does not mean draft tokens).
        new_kv_included: whether num_seq_kvcache counts this step's tokens.
        min_process_len: tokens of a task at least, rounded up to whole tiles of 64.

    Returns:
        `task_map`.
    """
    if not 1 <= mtp <= MAX_QUERY_TOKENS:
        raise HpcOpsError(f"mtp: {mtp} where 1 to {MAX_QUERY_TOKENS} are supported; in this function it is the number of query tokens per request")
    if num_seq_kvcache.device.type == "cpu":
        num_seq_kvcache = num_seq_kvcache.to(task_map.device, non_blocking=True)
    min_tokens = max(-(-min_process_len // TILE), 1) * TILE
    torch.ops.tle_attn.plan_decode_tasks(num_seq_kvcache, task_map, num_head_kv, mtp, new_kv_included, min_tokens)
    return task_map


def _options(mtp: int, new_kv_included: bool, splitk: bool, task_map: Tensor | None) -> dict[str, int | bool | Tensor | None]:
    """Options of this library's operators."""
    if not 0 <= mtp < MAX_QUERY_TOKENS:
        raise HpcOpsError(f"mtp: {mtp} draft tokens where 0 to {MAX_QUERY_TOKENS - 1} are supported")
    if task_map is not None and not splitk:
        raise HpcOpsError("splitk: must be True with a task_map, which splits requests")
    return {"query_tokens": mtp + 1, "new_kv_included": new_kv_included, "split": splitk, "tasks": task_map}
