"""`--set key=value`."""

from __future__ import annotations

import pytest

from tle_attn.cli.options import read_recipe, read_setting
from tle_attn.errors import SpecError


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("ring.stages=4", ("ring.stages", 4)),
        (" ring.stages = 4 ", ("ring.stages", 4)),
        ("score[0].cap=30.0", ("score[0].cap", 30.0)),
        ("epilogue.dtype=f32", ("epilogue.dtype", "f32")),
        ("schedule.block=static_split", ("schedule.block", "static_split")),
        ('epilogue.lse="2"', ("epilogue.lse", "2")),
        ("a.b=true", ("a.b", True)),
        ("a.b=[1, 2]", ("a.b", [1, 2])),
        ("a.b=inf", ("a.b", float("inf"))),
        ("a.b=", None),
        ("a.b", None),
        ("=3", None),
        ("a.b=1 2", None),
        ("a.b=[1", None),
        ("a.b=two words", None),
    ],
)
def test_values(text: str, setting: tuple[str, object] | None) -> None:
    if setting is None:
        with pytest.raises(SpecError):
            read_setting(text)
    else:
        key, value = read_setting(text)
        assert (key, value) == setting and type(value) is type(setting[1])


def test_an_axis_that_is_set_is_an_axis_no_more() -> None:
    recipe = read_recipe("hy3/decode_bf16", ["problem.page=32", "ring.stages=2"])
    assert "problem.page" not in recipe.axes and "problem.query_tokens" in recipe.axes
    kernel = recipe.kernel()
    assert kernel.problem.page == 32 and kernel.mainloop.ring.stages == 2
