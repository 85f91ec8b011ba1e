"""Case 18: compaction by ballot, for widths around a warp; the GPU runs the same in tests/gpu/test_compaction.py."""

import pytest

from tests.cases.compaction import CASES, EXPECTED_GUARD, OP, arguments, kept
from tests.gpu.ops import emulated


@pytest.mark.parametrize("width,pattern", CASES)
def test_18_ascending_complete_and_nothing_beside(width, pattern, seed):
    before = arguments(width, pattern)
    out = emulated(OP, before, seed)["out"]
    want = kept(width, pattern)
    assert out[:len(want)].tolist() == want, "ascending and complete"
    assert (out[len(want):512] == EXPECTED_GUARD).all(), "nothing beside what is kept"
    assert out[512] == len(want)
