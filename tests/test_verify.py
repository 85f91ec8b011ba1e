"""Verification itself: it passes right kernels, and must fail wrong ones."""

from __future__ import annotations

import math
import random

import pytest
import torch

import tle_attn
from tle_attn import verify
from tle_attn.errors import SpecError, TargetUnavailable
from tle_attn.oracle.steps import SoftCap
from tle_attn.spec import Block


@pytest.mark.parametrize("recipe", tle_attn.list_recipes())
def test_library_recipes_are_right_in_emulation(recipe: str) -> None:
    result = verify.verify_kernel(tle_attn.load(recipe).kernel(), "cpu", seed=random.randrange(2**16))
    assert result.ok, result.failure
    assert 0 < result.error < result.tolerance


@pytest.mark.parametrize(("recipe", "seed"), [("variants/decode_fp8_sigmoid", 38608), ("variants/prefill_fp8_sigmoid", 1238)])
def test_weights_at_the_end_of_e4m3_are_held_to_its_spacing(recipe: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems with a row of one key whose weight is a few units of 2**-17, which no rounding can bring to within a relative bound."""
    kernel = tle_attn.load(recipe).kernel()
    assert verify.verify_kernel(kernel, "cpu", seed=seed).ok
    monkeypatch.setattr(type(kernel.mainloop.softmax), "weight_unit", Block.weight_unit)
    assert "1 of" in (verify.verify_kernel(kernel, "cpu", seed=seed).failure or "")


def test_log_sum_exp_is_compared_too() -> None:
    recipe = tle_attn.load("hy3/decode_bf16_static").set({"epilogue.lse": "2", "epilogue.dtype": "f32"})
    assert verify.verify_kernel(recipe.kernel(), "cpu", seed=1).ok


@pytest.mark.parametrize(
    ("wanted", "wrong"),
    [({"causal": True}, {"causal": True, "soft_cap": 2.0}), ({"causal": True}, {"causal": True, "window": 200}), ({"causal": True}, {"causal": False})],
)
def test_a_kernel_that_computes_something_else_fails(wanted: dict, wrong: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle is told of an option that the kernel has not."""
    kernel = tle_attn.load("hy3/decode_bf16").kernel(query_tokens=2)
    assert verify.oracle_options(kernel) == wanted
    monkeypatch.setattr(verify, "oracle_options", lambda *_: wrong)
    result = verify.verify_kernel(kernel, "cpu")
    assert not result.ok and result.error > result.tolerance
    assert "sequence" in result.failure and "relative RMS" in result.failure


def test_a_result_without_a_finite_element_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tle_attn.load("hy3/decode_bf16").kernel()
    monkeypatch.setattr(verify, "oracle_options", lambda *_: {"causal": True, "score_steps": (lambda s, *_: s * float("nan"),)})
    result = verify.verify_kernel(kernel, "cpu")
    assert not result.ok and "rows of the oracle's own result are not finite" in result.failure


def test_a_block_that_the_oracle_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tle_attn.load("variants/decode_bf16_soft_cap").kernel()
    monkeypatch.setattr(type(kernel.mainloop.score[0]), "oracle_options", Block.oracle_options)
    with pytest.raises(SpecError, match="score.soft_cap"):
        verify.verify_kernel(kernel, "cpu")


def test_what_blocks_mean_to_the_oracle() -> None:
    options = {name: verify.oracle_options(tle_attn.load(name).kernel()) for name in tle_attn.list_recipes()}
    assert options["variants/decode_bf16_window"] == {"causal": True, "window": 4096}
    assert options["variants/decode_bf16_soft_cap"] == {"causal": True, "score_steps": (SoftCap(50.0),)}


def test_an_emulation_report_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol of a kernel may be wrong though its numbers are not."""
    kernel = tle_attn.load("hy3/decode_bf16").kernel()
    broken = type(kernel.mainloop.ring)(stages=3, readers=2)
    import attrs

    kernel = attrs.evolve(kernel, mainloop=attrs.evolve(kernel.mainloop, ring=broken))
    result = verify.verify_kernel(kernel, "cpu")
    assert not result.ok and "Deadlock" in result.failure and math.isinf(result.error)


def test_problems_cover_the_edges() -> None:
    kernel = tle_attn.load("hy3/decode_bf16").kernel(page=32)
    for seed in range(5):
        made = verify.problems(kernel, seed=seed, emulated=True)
        for name, problem in made:
            lengths = problem.kv_lens.tolist()
            assert 0 in lengths and 1 in lengths and {31, 32, 33} & set(lengths) and {63, 64, 65, 127, 128, 129} & set(lengths), name
        assert max(made[0][1].kv_lens) >= 1600  # more than one task of 512 tokens
        assert made[0][1].k_cache.stride() != made[1][1].k_cache.stride()


def test_equal_seeds_give_equal_problems() -> None:
    kernel = tle_attn.load("hy3/decode_bf16").kernel()
    one, two, other = (verify.problems(kernel, seed=s, emulated=True) for s in (4, 4, 5))
    assert all(torch.equal(a.q, b.q) for (_, a), (_, b) in zip(one, two, strict=True))
    assert not all(a.q.shape == b.q.shape and torch.equal(a.q, b.q) for (_, a), (_, b) in zip(one, other, strict=True))


@pytest.mark.parametrize("target", ["gluon", "tle"])
def test_an_unavailable_target_raises(target: str) -> None:
    from tle_attn.build import has_hopper

    if has_hopper() and target == "gluon":
        pytest.skip("a Hopper GPU is here")
    with pytest.raises(TargetUnavailable) as error:
        verify.verify_kernel(tle_attn.load("hy3/decode_bf16").kernel(), target)
    assert "\n" not in str(error.value)
