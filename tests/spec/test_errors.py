"""SpecError: one layout for what, where, what is allowed and why."""

from tle_attn.errors import SpecError


def test_everything():
    error = SpecError("no", key="stages", value=0, allowed=(1, 2), reason="two slots").located(file="a.toml", prefix="ring")
    assert str(error) == "a.toml: ring.stages: no\n  value    0\n  allowed  1, 2\n  because  two slots"
    assert isinstance(error, ValueError)


def test_only_a_message():
    assert str(SpecError("no")) == "no"
    assert str(SpecError("no", value=None)) == "no\n  value    None"


def test_the_first_file_and_every_prefix_stay():
    error = SpecError("no", file="child.toml").located(file="parent.toml", prefix="b")
    assert (error.file, error.key) == ("child.toml", "b")
    assert error.located(prefix="a").key == "a.b"
