"""K and V without pages: what is refused, and that room behind a sequence is never used.  Values are compared by `tle-attn verify` on the recipes."""

import pytest
import torch

import tle_attn
from tests.cases.helpers import check, kernel_of, launch, plan_for
from tle_attn.errors import InputError, SpecError
from tle_attn.random_problems import problem_for

RECIPE = "variants/decode_bf16_contiguous"


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_rooms_that_are_no_multiple_of_a_tile(layout):
    kernel = kernel_of(RECIPE, {}, query_tokens=2)
    problem = problem_for(kernel, [1, 0, 64, 65, 700], 2, layout=layout, seed=7)
    assert problem.k_cache.shape[1] % 64 and problem.k_cache.isnan().any()
    check(kernel, problem, launch(plan_for(kernel, problem), problem))


def test_refused_inputs():
    kernel = kernel_of(RECIPE)
    problem = problem_for(kernel, [100, 30], seed=1)
    plan = plan_for(kernel, problem)
    given = problem.inputs
    for change, message in (
        ({"block_ids": problem.block_ids}, "block_ids: .* takes K and V without pages; None is wanted"),
        ({"k_cache": problem.k_cache[:1]}, r"k_cache: shape .* where \[batch, room, kv_heads, head_dim\] = \(2, any, 1, 128\)"),
        ({"v_cache": problem.v_cache[:, :-1]}, "v_cache: room for .* tokens where k_cache has"),
    ):
        with pytest.raises(InputError, match=message):
            plan.run(**given | change)
    with pytest.raises(InputError, match=r"kv_lens\[1\]: 1000 tokens, but k_cache has room for"):
        plan.run(**given | {"kv_lens": torch.tensor([100, 1000], dtype=torch.int32)}, debug=True)


def test_refused_recipes():
    with pytest.raises(SpecError, match="no page size"):
        tle_attn.load(RECIPE).kernel(page=16)
    with pytest.raises(SpecError, match="contiguous_tma has no pages"):
        tle_attn.load("hy3/decode_fp8_per_token").set({"loader.block": "contiguous_tma"}).kernel()
