"""The benchmark of prefill variants without a GPU: what it measures, beside what, and how many tiles."""

import pytest

import tle_attn
from benchmarks import prefill_variants


def test_every_variant_of_the_library_and_some():
    names = {v.recipe for v in prefill_variants.variants([])}
    assert names == {name for name in tle_attn.list_recipes() if name.startswith("variants/prefill_")} and len(names) >= 20
    assert {v.name for v in prefill_variants.variants(["alibi"])} == {"prefill_bf16_alibi", "prefill_fp8_alibi"}


@pytest.mark.parametrize("name,head_dim,group", [("prefill_bf16_alibi", 128, 8), ("prefill_fp8_mqa", 128, 32), ("prefill_bf16_d64", 64, 8), ("prefill_fp8_d192_v128", 192, 8), ("prefill_bf16_d256", 256, 8)])
def test_the_plain_kernel_takes_the_same_tensors(name, head_dim, group):
    kernel = tle_attn.load(f"variants/{name}").kernel()
    plain = prefill_variants.plain_of(kernel)
    assert plain.name == "hy3/" + "_".join(name.split("_")[:2]) and plain.problem == kernel.problem
    assert (plain.problem.head_dim, plain.problem.group) == (head_dim, group)


def test_without_pages_there_are_as_many_keys_as_queries():
    cases = {name: set(prefill_variants.cases_of(tle_attn.load(f"variants/prefill_fp8_{name}").kernel())) for name in ("contiguous", "alibi")}
    assert cases == {"contiguous": {"1 x 8k", "4 x 2k"}, "alibi": set(prefill_variants.CASES)}


def test_tiles_by_counting():
    """A tile is visited if any pair of a unit's rows and its keys is visible."""
    pairs = ((300, 700), (128, 5000))
    for name in ("hy3/prefill_bf16", "variants/prefill_bf16_window"):
        kernel = tle_attn.load(name).set({"mask[1].window": 200} if "window" in name else {}).kernel()
        window, tiles = 200 if "window" in name else 10**6, 0
        for queries, keys in pairs:
            for row in range(0, queries, 128):
                positions = range(keys - queries + row, min(keys - queries + row + 128, keys))
                tiles += len({key // 128 for p in positions for key in range(max(0, p - window + 1), p + 1)})
        assert prefill_variants.visited_tiles(kernel, pairs) == tiles
