import pytest

from benchmarks.variants import Variant, parse_variant
from tle_attn.cli.options import read_setting


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("ring.stages=4", ("ring.stages", 4)),
        ("score[0].cap=30.5", ("score[0].cap", 30.5)),
        ("epilogue.lse=e", ("epilogue.lse", "e")),
        ('epilogue.lse="2"', ("epilogue.lse", "2")),
        ("a.b=true", ("a.b", True)),
    ],
)
def test_option(text, option):
    assert read_setting(text) == option


@pytest.mark.parametrize("text", ["ring.stages", "=4", "ring.stages="])
def test_no_option(text):
    with pytest.raises(ValueError, match="KEY=VALUE"):
        read_setting(text)


def test_variant():
    shared = [("ring.stages", 2), ("mainloop.ctas_per_sm", 1)]
    options = (("ring.stages", 4), ("mainloop.ctas_per_sm", 1), ("reduce.poll_above", 0))
    assert parse_variant("x:ring.stages=4,reduce.poll_above=0", "r", shared) == Variant("x", "r", options)
    assert parse_variant("x", "r") == Variant("x", "r")
    assert parse_variant("x:recipe=other/one", "r") == Variant("x", "other/one")


@pytest.mark.parametrize("text", [":a.b=1", "x:", ""])
def test_no_variant(text):
    with pytest.raises(ValueError, match="NAME"):
        parse_variant(text, "r")


def test_kernel():
    kernel = Variant("x", "hy3/decode_bf16", (("ring.stages", 2),)).kernel(query_tokens=2, page=16)
    assert (kernel.mainloop.ring.stages, kernel.problem.query_tokens, kernel.problem.page) == (2, 2, 16)
