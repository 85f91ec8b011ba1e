"""Case 25: key tiles around the number of stages.  26 is in tests/checks/test_protocol_mutants.py, on the kernel text of the library."""

import time

import pytest

from tests.cases.helpers import DYNAMIC, FP8, FP8_PER_TOKEN, KV_PER_TOKEN, check, kernel_of, problem_for, run
from tle_attn.errors import SpecError

WATCHDOG = 10.0  # seconds; the emulation reports a deadlock at once


@pytest.mark.parametrize("recipe,stages", [(DYNAMIC, 1), (DYNAMIC, 3), (DYNAMIC, 4), (FP8, 1), (FP8_PER_TOKEN, 2), (KV_PER_TOKEN, 2), (KV_PER_TOKEN, 3)])
def test_25_tiles_around_the_stages(recipe, stages, seed):
    """0, 1, S - 1, S and S + 1 tiles of a task, full and not; no sequence is cut, as tasks have eight tiles at least.  The protocol alone, for every
    recipe: tests/checks/test_protocol.py."""
    options = {"ring.stages": stages} | ({"mainloop.ctas_per_sm": 1} if (recipe, stages) == (DYNAMIC, 4) else {})
    kernel = kernel_of(recipe, options)
    tiles = sorted({0, 1, stages - 1, stages, stages + 1})
    problem = problem_for(kernel, [max(64 * n - cut, 0) for n in tiles for cut in (0, 9)], seed=seed)
    start = time.perf_counter()
    result = run(kernel, problem, seed=seed)
    assert time.perf_counter() - start < WATCHDOG
    check(kernel, problem, result)


def test_25_scales_per_token_need_two_stages():
    with pytest.raises(SpecError, match="ring.stages: K scales per token need a second ring slot"):
        kernel_of(FP8_PER_TOKEN, {"ring.stages": 1})
