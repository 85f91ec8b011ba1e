"""Lengths of the benchmarks.

Decode: KV lengths that the CUDA reference (Tencent hpc-ops, benchmark/attention_decode) publishes.  It runs them with heads (8, 1), head_dim 128,
page 64 and one query token.  Prefill: (queries, keys) of each sequence.  The first three are those for which its kernels were published, with
heads (32, 4).

Merge: (states, tokens, heads), a decode step's batch and a prefill chunk.
"""

_K = 1024

#: Name to the KV length of each sequence, in order.
WORKLOADS: dict[str, tuple[int, ...]] = {
    "uniform_512": (512,) * 64,
    "uniform_4096": (4 * _K,) * 64,
    "skewed_mix": (128,) * 32 + (4 * _K,) * 32,
    "skewed_extreme": (64,) * 15 + (16 * _K,),
    "one_64k_7x4k": (64 * _K,) + (4 * _K,) * 7,
    "one_64k_15x4k": (64 * _K,) + (4 * _K,) * 15,
    "one_64k_31x4k": (64 * _K,) + (4 * _K,) * 31,
    "one_128k_31x4k": (128 * _K,) + (4 * _K,) * 31,
    "two_32k_30x4k": (32 * _K,) * 2 + (4 * _K,) * 30,
}

#: Name to the (queries, keys) of each sequence, in order.
PREFILL_WORKLOADS: dict[str, tuple[tuple[int, int], ...]] = {
    "prefill_127": ((127, 127),),
    "prefill_512_4k": ((512, 4 * _K),),
    "prefill_512_32k": ((512, 32 * _K),),
    "prefill_2k": ((2 * _K, 2 * _K),),
    "prefill_8k": ((8 * _K, 8 * _K),),
    "prefill_32k": ((32 * _K, 32 * _K),),
    "prefill_4x4k": ((4 * _K, 4 * _K),) * 4,
    "prefill_8k_15x512": ((8 * _K, 8 * _K),) + ((512, 512),) * 15,
}

#: Name to (states, tokens, heads); a kernel that merges a list has as many states as it says.
MERGE_WORKLOADS: dict[str, tuple[int, int, int]] = {
    "merge_64": (2, 64, 64),
    "merge_8x64": (8, 64, 64),
    "merge_8k": (2, 8 * _K, 64),
    "merge_8x8k": (8, 8 * _K, 64),
}
