"""hpc-ops' prefill test grids, whole, with both layouts and a new and a given output inside."""

import pytest

from tests.compat.hpc_prefill_cases import PrefillCase, check_case, grid


@pytest.mark.parametrize("case", grid(), ids=lambda c: c.label)
def test_prefill(case: PrefillCase) -> None:
    check_case(case, "cuda")
