"""Corners of hpc-ops' decode test grids, small enough for the emulation, at its tolerances and at ours.  The whole grids: tests/gpu/test_hpc_ops_grids.py."""

import pytest
import torch

from tests.compat.hpc_cases import Expected, HpcCase, attend, check_case, grid, grid_kernels, in_hnd, make_problem

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
    check_case(case, "cpu")


def test_whole_grids() -> None:
    """With two layouts and two schedules each: 144, 192 and 192 tests."""
    assert [4 * sum(c.quant == quant for c in grid()) for quant in (None, 0, 1)] == [144, 192, 192]
    assert len(set(grid())) == len(grid())


def test_kernels_of_the_grids() -> None:
    """11 points, each with a task map and two static splits, and their planners."""
    assert len(grid_kernels()) == 11 * 3 + 11


def test_layouts_hold_the_same(emulated: None) -> None:
    problem = make_problem(CASES[5], "cpu")
    placed = in_hnd(problem)
    assert (problem.k_cache.stride()[1:3], placed.k_cache.stride()[1:3]) == ((2 * 128, 128), (128, 66 * 128))
    assert torch.equal(placed.k_cache.float(), problem.k_cache.float())
    assert torch.equal(placed.k_scale.view(torch.float32), problem.k_scale.view(torch.float32))
    assert torch.equal(placed.reference()[0], problem.reference()[0])


def test_a_wrong_scale_is_noticed(emulated: None) -> None:
    """The data are such that a scale of another token or head shows, at our tolerance at least."""
    case = CASES[5]
    problem = make_problem(case, "cpu")
    out = attend(problem)
    problem.k_scale.view(torch.float32)[problem.block_ids[0, 0].long(), 0, :, 0] *= 8
    with pytest.raises(AssertionError):
        Expected.of(problem).check(out, case.quant, "a scale changed")
