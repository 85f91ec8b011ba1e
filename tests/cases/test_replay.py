"""Case 23: one plan, lengths that change between launches.  Graphs themselves are in tests/gpu/test_decode_launches.py and test_operators.py."""

import pytest
import torch

from tests.cases.helpers import FAMILY, bits, check, kernel_of, launch, plan_for, problem_for


@pytest.mark.parametrize("recipe", FAMILY)
def test_23_a_plan_serves_any_lengths(recipe, seed):
    """Launched with at most 64 keys a sequence, then with up to 1500, then with 3 live requests of 8: right, and bit-equal to a plan that has seen nothing else.

    What a graph captures is what `run` launches: the same tensors in place, the same grid.
    """
    kernel = kernel_of(recipe)
    problem = problem_for(kernel, (1500, 70, 200, 64, 130, 1, 65, 130), seed=seed, poison=False)
    plan = plan_for(kernel, problem)
    out = problem.new_output()
    for lengths in ((64, 64, 64, 64, 64, 1, 64, 64), (1500, 70, 200, 64, 130, 1, 65, 130), (3, 69, 65, 0, 0, 0, 0, 0)):
        problem.kv_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        out.fill_(torch.nan)
        result = launch(plan, problem, out=out)
        check(kernel, problem, result)
        assert bits(out) == bits(launch(plan_for(kernel, problem), problem)[0])
        assert not plan.workspace["counters"].any()
