"""Cases 16 and 30: a soft cap that means nothing is refused, and so is an option that would be ignored.  29 is in tests/runtime/test_executors.py."""

import math
import re

import pytest
import torch
from attrs import evolve

import tle_attn
from tests.cases.helpers import DYNAMIC, FP8, SOFT_CAP, STATIC, WINDOW, launch, plan_for, problem_for
from tle_attn.components.masks.sliding_window import SlidingWindow
from tle_attn.errors import InputError, InputTypeError, SpecError

GEOMETRY = {"batch": 1, "query_heads": 8, "kv_heads": 1, "target": "cpu"}


def refused(message: str, kind: type[Exception] = SpecError):
    return pytest.raises(kind, match=re.escape(message))


@pytest.mark.parametrize("cap", [0, 0.0, -1, -1.0, math.nan, math.inf, -math.inf, 1e39, 1e6])
def test_16_caps_that_cap_nothing(cap):
    """Nor one so large that it is infinite, or that rounding eats the scores, in float32."""
    with refused(f"score[0].cap: cap cannot be {float(cap)!r}") as caught:
        tle_attn.load(SOFT_CAP).set({"score[0].cap": cap}).kernel()
    assert "allowed  a finite number above 0" in str(caught.value) and "because  " in str(caught.value)


@pytest.mark.parametrize("recipe", [DYNAMIC, SOFT_CAP])
@pytest.mark.parametrize("name", ["soft_cap", "cap", "window", "alibi_slopes", "sink"])
def test_16_not_at_run_time_only(recipe, name):
    """A cap is part of the kernel: `run` takes none, whether the kernel has one or not; and `plan` has no such key."""
    kernel = tle_attn.load(recipe).kernel()
    problem = problem_for(kernel, (5,))
    with refused(f"{name}: {recipe} has no such argument", InputError):
        launch(plan_for(kernel, problem), problem, **{name: 30.0})
    with refused(f"problem.{name}: Problem has no option '{name}'"):
        tle_attn.plan(recipe, **GEOMETRY, **{name: 30.0})


@pytest.mark.parametrize("recipe,options,message", [
    (DYNAMIC, {"score[0].cap": 30.0}, "the recipe has no score[0]"),
    (WINDOW, {"mask[1].left": 3}, "mask[1].left: sliding_window has no option 'left'"),
    (WINDOW, {"mask[0].window": 3}, "mask[0].window: causal has no option 'window'"),
    (DYNAMIC, {"schedule.splits": 4}, "schedule.splits: task_map has no option 'splits'"),
    (DYNAMIC, {"scale.k_scale": 1.0}, "scale.k_scale: softmax has no option 'k_scale'"),
    (DYNAMIC, {"problem.causal": True}, "problem.causal: Problem has no option 'causal'"),
    (DYNAMIC, {"problem.seed": 3}, "problem.seed: Problem has no option 'seed'"),
    (DYNAMIC, {"mainloop.stages": 3}, "mainloop.stages: decode has no option 'stages'"),
    (FP8, {"softmax.exponent": 4}, "softmax.exponent: online has no option 'exponent'"),
])  # fmt: skip
def test_30_options_that_no_block_has(recipe, options, message):
    with refused(message):
        tle_attn.load(recipe).set(options).kernel()


def test_30_scales_of_a_kernel_without_any():
    kernel = tle_attn.load(DYNAMIC).kernel()
    problem = problem_for(kernel, (5,))
    for name in ("q_scale", "k_scale", "v_scale"):
        with refused(f"{name}: hy3/decode_bf16 takes bf16 tensors, which have no scales", InputError):
            launch(plan_for(kernel, problem), problem, **{name: torch.ones(1)})


def test_30_lse_of_a_kernel_that_writes_none():
    """15 and 30: the base is a field of the recipe, and there is no default for it."""
    kernel = tle_attn.load(DYNAMIC).kernel()
    problem = problem_for(kernel, (5,))
    with refused('lse: this kernel writes none; set epilogue.lse to "e" or "2" in the recipe', InputError):
        launch(plan_for(kernel, problem), problem, lse=torch.zeros(1, 8))
    for value in ("yes", "10", "ln"):
        with refused(f'epilogue.lse: lse cannot be "{value}"') as caught:
            tle_attn.load(DYNAMIC).set({"epilogue.lse": value}).kernel()
        assert "allowed  none, e, 2" in str(caught.value)
    with refused("epilogue.lse: true is not a string"):
        tle_attn.load(DYNAMIC).set({"epilogue.lse": True}).kernel()


def test_30_scheduled_where_nothing_is_planned():
    kernel = tle_attn.load(STATIC).kernel()
    problem = problem_for(kernel, (5,))
    with pytest.raises(tle_attn.errors.TleAttnError, match="plans nothing"):
        launch(plan_for(kernel, problem), problem, scheduled=True)


@pytest.mark.parametrize("mask", [(), (SlidingWindow(window=100),)])
def test_no_mask_ends_the_keys(mask):
    """Without one the rest of a sequence's last tile, which nothing ever wrote, would count."""
    kernel = tle_attn.load(DYNAMIC).kernel()
    with pytest.raises(SpecError, match=": mask: no mask ends a sequence's keys at its length"):
        evolve(kernel, mainloop=evolve(kernel.mainloop, mask=mask))


@pytest.mark.parametrize("scale,kind,message", [
    (math.nan, InputError, "softmax_scale: nan is not finite"),
    (-math.inf, InputError, "softmax_scale: -inf is not finite"),
    (1e39, InputError, "softmax_scale: 1e+39 is not finite in float32"),
    ("0.1", InputTypeError, "softmax_scale: a number is wanted, not str"),
    (torch.tensor(0.1), InputTypeError, "softmax_scale: a number is wanted, not Tensor"),
    (True, InputTypeError, "softmax_scale: a number is wanted, not bool"),
])  # fmt: skip
def test_30_softmax_scales_that_are_none(scale, kind, message):
    """A tensor would be read on the host, which waits for the device."""
    kernel = tle_attn.load(DYNAMIC).kernel()
    problem = problem_for(kernel, (5,))
    out = problem.new_output()
    with refused(message, kind):
        launch(plan_for(kernel, problem), problem, out=out, softmax_scale=scale)
    assert out.isnan().all(), "something was launched"


@pytest.mark.parametrize("recipe", [DYNAMIC, FP8])
@pytest.mark.parametrize("exponent", [-1, -20, 5000])
def test_30_exponents_that_leave_no_p(recipe, exponent):
    """P below 2**-9 is nothing in e4m3, and 2**5000 is nothing anywhere."""
    with refused("softmax.p_exponent: p_exponent cannot be"):
        tle_attn.load(recipe).set({"softmax.p_exponent": exponent}).kernel()
