"""The benchmark's workloads, against the totals that it publishes."""

from tle_attn.testing import WORKLOADS


def test_batch_and_tokens():
    published = {
        "uniform_512": (64, 32768),
        "uniform_4096": (64, 262144),
        "skewed_mix": (64, 135168),
        "skewed_extreme": (16, 17344),
        "one_64k_7x4k": (8, 94208),
        "one_64k_15x4k": (16, 126976),
        "one_64k_31x4k": (32, 192512),
        "one_128k_31x4k": (32, 258048),
        "two_32k_30x4k": (32, 188416),
    }
    assert {name: (len(lens), sum(lens)) for name, lens in WORKLOADS.items()} == published
