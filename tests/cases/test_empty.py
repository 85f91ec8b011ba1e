"""Cases 7 and 9: sequences and query rows without a key.  8, 10 and 11 are prefill's."""

import math

import pytest
import torch

from tests.cases.helpers import DYNAMIC, FP8, FP8_PER_TOKEN, PARTS, WINDOW, check, kernel_of, problem_for, run


@pytest.mark.parametrize("recipe,options,kv_heads,target", [
    (DYNAMIC, {}, 1, "cpu"), (DYNAMIC, {}, 8, "cpu"), (FP8, {}, 1, "cpu"), (FP8_PER_TOKEN, {}, 1, "tle-emulated"),
])  # fmt: skip
def test_7_empty_sequences_between_short_ones(recipe, options, kv_heads, target, seed):
    kernel = kernel_of(recipe, options)
    problem = problem_for(kernel, (0, 5) * (12 if kv_heads == 1 else 3), kv_heads, seed=seed)
    out, lse = run(kernel, problem, target)
    assert not out[::2].any() and (lse[::2] == -math.inf).all()
    check(kernel, problem, (out, lse))


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8, FP8_PER_TOKEN])
def test_7_nothing_but_empty_sequences(recipe):
    kernel = kernel_of(recipe)
    out, lse = run(kernel, problem_for(kernel, (0, 0, 0)))
    assert not out.any() and (lse == -math.inf).all()


@pytest.mark.parametrize("recipe,options", [(DYNAMIC, {}), (FP8, PARTS), (FP8_PER_TOKEN, {}), (WINDOW, {"mask[1].window": 1} | PARTS)])
def test_9_queries_before_the_first_key(recipe, options, seed):
    """Fewer keys than query tokens: the first ones stand before the cache and see nothing."""
    kernel = kernel_of(recipe, options, query_tokens=3)
    problem = problem_for(kernel, (1, 2, 0, 3, 64, 65), seed=seed)
    out, lse = run(kernel, problem)
    empty = torch.tensor([True, True, False, True, False, False, True, True, True, *[False] * 9])
    assert not out[empty].any() and (lse[empty] == -math.inf).all() and lse[~empty].isfinite().all()
    check(kernel, problem, (out, lse))
