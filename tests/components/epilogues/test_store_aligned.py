"""Aligned stores: the text of `store`, a promise in the signature, and a plan that keeps it."""

import pytest
import torch

import tle_attn
from tle_attn.codegen import MARK
from tle_attn.errors import InputError
from tle_attn.testing import compare, make_decode_problem

ALIGNED = tle_attn.load("hy3/decode_bf16").set({"epilogue.block": "store_aligned"})


def test_the_text_is_that_of_store():
    texts = [tle_attn.generate(recipe.kernel(), "cpu").text.split(MARK)[1] for recipe in (ALIGNED, tle_attn.load("hy3/decode_bf16"))]
    assert texts[0].replace("epilogue/store_aligned", "epilogue/store") == texts[1]


def test_only_strides_of_out_are_promised():
    arguments = {a.name: a for a in tle_attn.generate(ALIGNED.kernel(), "gluon").entry("decode").arguments}
    assert {name for name, a in arguments.items() if a.divisible == 16} == {"q_token_stride", "q_head_stride", "out_token_stride", "out_head_stride"}


@pytest.mark.parametrize("wider", [0, 16, 8])
def test_a_decode_plan_keeps_the_promise(wider):
    problem = make_decode_problem([5, 70])
    out = torch.full((2, 8, 128 + wider), torch.nan, dtype=torch.bfloat16)[..., :128]
    plan = ALIGNED.plan(batch=2, query_heads=8, kv_heads=1, target="cpu")
    if wider % 16:
        with pytest.raises(InputError, match="out: stride of dimension 0 1088 is not a multiple of 16|out: stride of dimension 1 136 is not"):
            plan.run(**problem.inputs, out=out)
        assert out.isnan().all()
    else:
        compare(plan.run(**problem.inputs, out=out)[0], problem.reference()[0], rms=4e-3)
