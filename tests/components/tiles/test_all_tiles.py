"""Every tile of the causal range, latest first."""

import pytest

from tests.components.tiles.walk import check, walk_kernel
from tle_attn.components.tiles.all_tiles import AllTiles


@pytest.mark.parametrize("first,last", [(0, 0), (0, 1), (0, 2), (0, 77), (3, 4), (3, 9), (5, 5), (7, 5)])
def test_walk(target, device, first, last):
    """From the range's end to its start, or to where a window begins; nothing where the window begins behind the end."""
    check(walk_kernel(AllTiles()), list(range(last - 1, first - 1, -1)), last, target, device, absent=False, first=first)
