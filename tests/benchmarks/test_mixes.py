"""The benchmark of random mixes: its lengths, its kernels and its verdicts, without a GPU."""

import pytest

from benchmarks import mixes


@pytest.mark.parametrize("batch", mixes.BATCHES)
def test_lengths(batch):
    lengths = mixes.lengths_of(batch, 20)
    assert len(lengths) == batch and all(1 <= n <= mixes.LONGEST for n in lengths)
    assert lengths == mixes.lengths_of(batch, 20) != mixes.lengths_of(batch, 21)
    if batch >= 200:  # logarithms are uniform: half of the lengths are below the square root of the longest
        assert 0.35 < sum(n < mixes.LONGEST**0.5 for n in lengths) / batch < 0.65


@pytest.mark.parametrize("recipe", ["hy3/decode_bf16", "hy3/decode_fp8", "hy3/decode_fp8_per_token"])
def test_kernels(recipe):
    kernels = mixes.kernels_of(recipe, 2)
    assert {n: (k.mainloop.schedule.NAME, k.mainloop.batch_invariant, k.problem.query_tokens) for n, k in kernels.items()} == {
        "planned": ("task_map", False, 2), "static": ("static_split", True, 2),
    }  # fmt: skip


@pytest.mark.parametrize("planned,static,floor,words", [
    (20.0, 25.0, 18.0, []), (20.5, 20.0, 18.0, []), (21.0, 20.0, 18.0, ["slower than the static split"]), (25.0, 30.0, 18.0, ["1.39 times the floor"]),
    (25.0, 30.0, 14.0, []), (40.0, 30.0, 20.0, ["slower", "2.00 times"]),
])  # fmt: skip
def test_verdict(planned, static, floor, words):
    found = mixes.verdict({"planned": {"us": planned, "floor_us": floor}, "static": {"us": static}}, 1.3)
    assert len(found) == len(words) and all(w in f for w, f in zip(words, found))
