"""hpc-ops' decode test grids, whole: 528 tests of its own, here one for each problem, with both layouts and both schedules inside."""

import pytest

from tests.compat.hpc_cases import HpcCase, check_case, grid


@pytest.mark.parametrize("case", grid(), ids=lambda c: c.label)
def test_decode(case: HpcCase) -> None:
    check_case(case, "cuda")
