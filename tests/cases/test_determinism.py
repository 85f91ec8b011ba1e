"""Case 24: a row does not depend on its batch where the schedule is batch invariant, and equal runs are equal in every bit."""

import pytest
from attrs import evolve

from tests.cases.helpers import DYNAMIC, FP8, FP8_PER_TOKEN, PARTS, bits, kernel_of, launch, plan_for, problem_for, run
from tle_attn.errors import SpecError


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8])
def test_24_a_row_alone_and_in_a_batch(recipe, seed):
    """Static split; in a batch of other lengths, in another place of it, and alone."""
    kernel = kernel_of(recipe, {**PARTS, "mainloop.batch_invariant": True}, query_tokens=3)
    problem = problem_for(kernel, (400, 1, 65, 0, 200), seed=seed)
    together = run(kernel, problem)[0].split(3)
    for b in range(len(problem.kv_lens)):
        scales = {} if problem.q_scale is None else {"q_scale": problem.q_scale[3 * b : 3 * b + 3]}
        one = evolve(problem, q=problem.q[3 * b : 3 * b + 3], block_ids=problem.block_ids[b : b + 1], kv_lens=problem.kv_lens[b : b + 1], **scales)
        assert bits(run(kernel, one)[0]) == bits(together[b]), f"sequence {b}"


def test_24_the_task_map_does_not_promise_it():
    with pytest.raises(SpecError, match="mainloop.batch_invariant: task_map cuts a sequence by what else is in the batch"):
        kernel_of(DYNAMIC, {"mainloop.batch_invariant": True})
    assert not kernel_of(DYNAMIC).mainloop.schedule.BATCH_INVARIANT


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8_PER_TOKEN])
def test_24_twenty_runs_in_twenty_schedules(recipe, seed):
    """Whoever arrives last at a merge."""
    kernel = kernel_of(recipe)
    problem = problem_for(kernel, (1100, 65, 0), seed=seed)
    plan = plan_for(kernel, problem)
    found = set()
    for schedule in range(20):
        plan.executor.seed = schedule
        found.add(bits(launch(plan, problem)[0]))
    assert plan.records[:, 6].max() > 1, "a sequence was expected to be split"
    assert len(found) == 1
