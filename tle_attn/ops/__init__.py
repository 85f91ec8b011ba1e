"""Operators of `torch.library`: importing this module registers them under `torch.ops.tle_attn`; `torch.compile` keeps them whole.

    import tle_attn.ops
    out = torch.ops.tle_attn.attention_decode_bf16(q, k_cache, v_cache, block_ids, kv_lens)

Unlike a `Plan`, an operator is not told its geometry ahead: it makes a plan at the first call of each and keeps it.
"""

from . import prefill as _prefill  # noqa: F401  (registers its operators)
from .decode import new_task_map
from .emulation import emulate
from .merge import merge_states

__all__ = ["emulate", "merge_states", "new_task_map"]
