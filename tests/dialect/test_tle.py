"""The tle prelude against the dialect's table, and the probe for FlagTree."""

import ast
import sys
import types
from pathlib import Path

import pytest

import tle_attn.dialect
from tle_attn.codegen.prelude import defined_names
from tle_attn.dialect import flagtree
from tle_attn.dialect.table import DTYPES, MARKERS, OPS
from tle_attn.emu.tle_target import check_contract
from tle_attn.emu.tle_target.api import names
from tle_attn.errors import TargetUnavailable

SOURCE = Path(tle_attn.dialect.__file__).with_name("tle.py").read_text()
DEFINITIONS = {node.name: node for node in ast.parse(SOURCE).body if isinstance(node, ast.FunctionDef)}
ALIASES = {node.targets[0].id: ast.unparse(node.value) for node in ast.parse(SOURCE).body if isinstance(node, ast.Assign)}

#: what comes at another place in Triton's or TLE's own signature than in the dialect's: block text names it
NAMED = {"load": {"cache_modifier"}, "wgmma": {"trans_a", "trans_b"}}


def table_arguments(op) -> ast.arguments:
    return ast.parse(f"def {op.signature}: pass").body[0].args


def alias_row(name: str):
    """The documented function that an alias stands for."""
    path = ALIASES[name].replace("tl.", "triton.language.", 1) if ALIASES[name].startswith("tl.") else ALIASES[name]
    path = path.replace("tle.", "triton.experimental.tle.language.", 1) if path.startswith("tle.") else path
    return names()[path if "." in path else f"triton.language.extra.cuda.{path}"]


def test_every_name_of_the_dialect_is_defined():
    missing = {op.name for op in OPS} | set(DTYPES) | set(MARKERS)
    assert missing - defined_names("tle") == set()


def test_the_prelude_keeps_to_the_documented_interface():
    check_contract(SOURCE)


@pytest.mark.parametrize("op", [op for op in OPS if op.name in DEFINITIONS], ids=lambda op: op.name)
def test_functions_have_the_signature_of_the_table(op):
    wanted, got = table_arguments(op), DEFINITIONS[op.name].args
    assert [a.arg for a in got.args] == [a.arg for a in wanted.args]
    assert len(got.defaults) == len(wanted.defaults)


@pytest.mark.parametrize("op", [op for op in OPS if op.name not in DEFINITIONS], ids=lambda op: op.name)
def test_aliases_take_the_calls_of_the_table(op):
    """Required arguments by position and optional ones by name; optional ones by position too, unless they must be named."""
    arguments, row = table_arguments(op), alias_row(op.name)
    parameters = [a.arg for a in arguments.args]
    required, optional = parameters[: len(parameters) - len(arguments.defaults)], parameters[len(parameters) - len(arguments.defaults) :]
    assert row.complaint(len(required), tuple(optional)) is None
    for i, name in enumerate(optional, len(required)):
        assert name in NAMED.get(op.name, ()) or row.positional[i] == name


# ---------------------------------------------------------------- the probe
def everything() -> types.SimpleNamespace:
    """A ``triton.experimental.tle.language`` that has all that is asked for."""

    def alloc(shape, dtype, alias=None): ...

    def copy(src, dst, barrier=None): ...

    tle = types.SimpleNamespace(gpu=types.SimpleNamespace(alloc=alloc, copy=copy))
    for name in flagtree.NAMES:
        at = tle
        *path, last = name.split(".")
        for part in path:
            at = getattr(at, part)
        if not hasattr(at, last):
            setattr(at, last, types.SimpleNamespace())
    return tle


@pytest.fixture
def install(monkeypatch):
    def put(version: str, tle: object | None) -> None:
        triton = types.ModuleType("triton")
        triton.__version__, triton.language = version, types.SimpleNamespace(float8e4nv=object())
        for name in ("triton.experimental", "triton.experimental.tle"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, "triton", triton)
        monkeypatch.setitem(sys.modules, "triton.experimental.tle.language", tle)

    return put


def test_flagtree_is_recognised_by_its_calls(install):
    install("3.6.0", everything())
    assert flagtree.missing() == ()
    flagtree.require_flagtree()


@pytest.mark.parametrize("name", flagtree.NAMES)
def test_each_name_is_needed(install, name):
    tle = everything()
    *path, last = name.split(".")
    at = tle
    for part in path:
        at = getattr(at, part)
    delattr(at, last)
    install("3.6.0", tle)
    assert f"tle.{name}" in flagtree.missing()


def test_parameters_of_newer_versions_are_needed(install):
    tle = everything()
    tle.gpu.alloc = lambda shape, dtype: None
    install("3.6.0", tle)
    assert flagtree.missing() == ("tle.gpu.alloc(alias=)",)


@pytest.mark.parametrize(
    ("version", "tle", "reason"),
    [
        ("3.5.1", everything(), "no Triton >= 3.6 (found 3.5.1)"),
        ("3.6.0+git", None, "no triton.experimental.tle (stock Triton 3.6.0+git has no TLE)"),
        ("3.10.0", types.SimpleNamespace(gpu=types.SimpleNamespace()), "no tle.device_mesh, tle.distributed_barrier"),
    ],
)
def test_the_error_is_one_line_that_says_what_and_how(install, version, tle, reason):
    install(version, tle)
    with pytest.raises(TargetUnavailable) as caught:
        flagtree.require_flagtree()
    message = str(caught.value)
    assert "\n" not in message
    for part in ("the tle target cannot run here", reason, "install FlagTree >= 0.7", "the gluon target runs on stock Triton"):
        assert part in message


def test_no_triton_at_all(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert flagtree.missing() == ("triton",)
