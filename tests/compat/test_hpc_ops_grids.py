"""Corners of hpc-ops' decode test grids, small enough for the emulation, at its tolerances and at ours.  The whole grids: tests/gpu/test_hpc_ops_grids.py."""

import pytest

from tests.compat.hpc_cases import MIN_PROCESS_LEN, HpcCase, assigned, attend, check_as_there, check_tightly, in_hnd, make_problem

CASES = (
    HpcCase(None, 1, 1, 1024, (1, 8)),
    HpcCase(None, 3, 3, 300, (2, 16)),
    HpcCase(1, 2, 1, 400, (1, 8)),
    HpcCase(1, 2, 4, 200, (2, 16)),
    HpcCase(0, 2, 1, 400, (1, 8)),
    HpcCase(0, 3, 3, 200, (2, 16)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label)
def test_static_and_dynamic_in_both_layouts(case: HpcCase, emulated: None) -> None:
    problem = make_problem(case, "cpu")
    for placed, layout in ((problem, "NHD"), (in_hnd(problem), "HND")):
        for task_map in (None, assigned(placed, MIN_PROCESS_LEN[case.quant])):
            out = attend(placed, task_map=task_map)
            assert out.shape == problem.q.shape, layout
            check_as_there(out, problem, case.quant)
            check_tightly(out, problem)
