"""The attention operators of Tencent's hpc-ops under their names, with their arguments, defaults and in-place behaviour.

    from tle_attn.compat import hpc_ops as hpc

What is out of range raises HpcOpsError before anything is launched.  Differences: docs/hpc-ops.md.
"""

from .hpc_common import HpcOpsError, QuantType
from .hpc_decode import assign_attention_decode_task, attention_decode_bf16, attention_decode_fp8, get_attention_decode_task_workspace
from .hpc_prefill import (
    attention_prefill_bf16,
    attention_with_kvcache_blocksparse_prefill_fp8,
    attention_with_kvcache_prefill_bf16,
    attention_with_kvcache_prefill_fp8,
)

__all__ = [
    "HpcOpsError",
    "QuantType",
    "assign_attention_decode_task",
    "attention_decode_bf16",
    "attention_decode_fp8",
    "attention_prefill_bf16",
    "attention_with_kvcache_blocksparse_prefill_fp8",
    "attention_with_kvcache_prefill_bf16",
    "attention_with_kvcache_prefill_fp8",
    "get_attention_decode_task_workspace",
]
