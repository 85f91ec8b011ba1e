"""SpecError: one layout for what, where, what is allowed and why."""

import tomllib

from tle_attn.errors import SpecError, plain, written
from tle_attn.spec import DType


def test_everything():
    error = SpecError("no", key="stages", value=0, allowed=(1, 2), reason="two slots").located(file="a.toml", prefix="ring")
    assert str(error) == "a.toml: ring.stages: no\n  value    0\n  allowed  1, 2\n  because  two slots"
    assert isinstance(error, ValueError)


def test_only_a_message():
    assert str(SpecError("no")) == "no"
    assert str(SpecError("no", value=None)) == "no\n  value    not set"


def test_the_first_file_and_every_prefix_stay():
    error = SpecError("no", file="child.toml").located(file="parent.toml", prefix="b")
    assert (error.file, error.key) == ("child.toml", "b")
    assert error.located(prefix="a").key == "a.b"


def test_values_are_written_as_in_a_recipe():
    values = {"fp8": DType.FP8, 'a "b"': 'a "b"'}
    assert [written(v) for v in (DType.FP8, True, 'a "b"', 2.0, [1, "x"], (DType.BF16,), None)] == ['"fp8"', "true", r'"a \"b\""', "2.0", '[1, "x"]', '["bf16"]', "not set"]
    assert all(plain(value) == text for text, value in values.items())
    assert tomllib.loads(f"value = {written({'block': 'causal', 'on': [True, 1.5]})}")["value"] == {"block": "causal", "on": [True, 1.5]}
