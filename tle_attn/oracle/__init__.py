"""The oracle: attention over a paged KV cache in float64, written to be read, from which every kernel's right answer comes.

Nothing here is shared with the kernels or with their emulation.  See `attention` for the exact meaning of every option.
"""

from tle_attn.oracle.paged_attention import attention
from tle_attn.oracle.quantise import E4M3_MAX, P_SCALE, quantise_e4m3
from tle_attn.oracle.states import merge_states

__all__ = ["E4M3_MAX", "P_SCALE", "attention", "merge_states", "quantise_e4m3"]
