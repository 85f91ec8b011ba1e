"""Differences between recipes, as specs and as code."""

from __future__ import annotations

import tle_attn
from tle_attn.report import Difference, code_diff, differences
from tle_attn.spec.flat import flat_spec


def test_equal_recipes_do_not_differ() -> None:
    recipe = tle_attn.load("hy3/decode_bf16")
    assert differences(recipe, recipe) == []
    assert code_diff(recipe.kernel(), recipe.kernel(), "cpu") == []


def test_every_set_option_is_a_difference() -> None:
    recipe = tle_attn.load("hy3/decode_bf16")
    changed = recipe.set({"ring.stages": 2, "epilogue.lse": "e", "problem.page": 16})
    assert differences(recipe, changed) == [
        Difference("problem.page", "64", "16"),
        Difference("ring.stages", "3", "2"),
        Difference("epilogue.lse", "none", "e"),
        Difference("axes.problem.page", "64, 16, 32, 128", "-"),
    ]


def test_a_block_more_is_a_difference_with_its_options() -> None:
    a, b = tle_attn.load("hy3/decode_bf16"), tle_attn.load("variants/decode_bf16_soft_cap")
    assert differences(a, b) == [Difference("score[0]", "-", "soft_cap"), Difference("score[0].cap", "-", "50.0")]


def test_options_for_tests_alone_are_no_part_of_a_spec() -> None:
    keys = flat_spec(tle_attn.load("hy3/decode_bf16").kernel())
    assert "ring.stages" in keys and "ring.readers" not in keys and "loader.expect_scale" not in keys


def test_code_diff_applies_to_the_text() -> None:
    a, b = (tle_attn.load(n).kernel() for n in ("hy3/decode_bf16", "variants/decode_bf16_soft_cap"))
    lines = code_diff(a, b, "cpu")
    added = {line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")}
    removed = {line[1:] for line in lines if line.startswith("-") and not line.startswith("---")}
    one, two = (tle_attn.generate(k, "cpu").text.splitlines() for k in (a, b))
    assert added >= set(two) - set(one) and removed >= set(one) - set(two)
    assert any(line.startswith("def soft_cap_scores(") for line in added)
