"""Every operation of the table exists in the emulation and in the CPU prelude, with the table's signature."""

import ast
import inspect

import pytest

from tle_attn import emu
from tle_attn.dialect import cpu
from tle_attn.dialect.table import DTYPES, MARKERS, NAMES, OPS


def parameters(signature: str) -> list[tuple[str, object]]:
    """(name, default or None) of `f(a, b=1)`."""
    call = ast.parse(signature, mode="eval").body
    required = [(argument.id, inspect.Parameter.empty) for argument in call.args]
    return required + [(keyword.arg, ast.unparse(keyword.value)) for keyword in call.keywords]


@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_signature(op):
    function = getattr(emu.ops, op.name)
    assert getattr(cpu, op.name) is function
    found = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        found.append((parameter.name, default if default is inspect.Parameter.empty else repr(default)))
    expected = [(name, "0" if default == "PENDING" else default) for name, default in parameters(op.signature)]
    assert found == expected, f"{op.name}: {op.signature}"


def test_the_prelude_defines_all_names_of_the_dialect():
    assert {name for name in NAMES if not hasattr(cpu, name)} == set()
    assert all(getattr(cpu, name) is getattr(emu, name) for name in DTYPES)
    assert all(hasattr(cpu, name) for name in MARKERS)
    assert {op.name for op in OPS} <= set(emu.ops.__all__)
    assert set(emu.ops.__all__) - {op.name for op in OPS} == {"PENDING", "READY", "any_greater", "device_range", "joined"}
