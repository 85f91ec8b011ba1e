"""Random states: poison in empty states and between rows, and a reference in either logarithm."""

import math

import pytest
import torch

from tle_attn.testing import make_states_problem


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_not_to_be_read_is_nan(dtype):
    problem = make_states_problem(3, 6, 4, dtype=dtype, seed=1)
    empty = problem.lses == -math.inf
    assert empty[:, -1].all() and 0 < empty[:, :-1].sum() < empty[:, :-1].numel()
    assert problem.outs[empty].isnan().all() and problem.outs[~empty].isfinite().all()
    stored = torch.as_strided(problem.outs, (problem.outs.untyped_storage().nbytes() // dtype.itemsize,), (1,), 0)
    assert (~stored.isnan()).sum() == (~problem.outs.isnan()).sum() < 0.8 * len(stored), "nothing but the states is a number"


def test_inputs_and_reference():
    stack, listed = (make_states_problem(2, 3, 2, listed=listed, base="2") for listed in (False, True))
    assert torch.equal(torch.stack(listed.inputs["lses"]), stack.inputs["lses"]) and len(listed.inputs["outs"]) == 2
    out, lse = stack.reference()
    other = stack.reference(lse_base="e")
    assert torch.equal(out, other[0]) and (lse * math.log(2) - other[1])[:-1].abs().max() < 1e-12
    moved = stack.to("cpu")
    assert moved.outs.stride() == stack.outs.stride() and torch.equal(moved.outs.isnan(), stack.outs.isnan())
