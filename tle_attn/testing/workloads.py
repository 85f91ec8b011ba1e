"""KV lengths of the decode benchmark that the CUDA reference (Tencent hpc-ops, benchmark/attention_decode) publishes.

It runs them with heads (8, 1), head_dim 128, page 64 and one query token.
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
