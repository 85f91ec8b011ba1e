"""Loop bounds that Triton 3.6 loses: the analysis says "lost" exactly where the compiler drops the loop-carried value."""

import ast
import inspect
import textwrap

import pytest
import triton

from tle_attn.build import compile_module
from tle_attn.codegen.flow import bound_parameters, bounds_only_carries, is_static

needs_triton_3_6 = pytest.mark.skipif(not triton.__version__.startswith("3.6"), reason=f"Triton 3.6 has this fault; here is {triton.__version__}")

#: bodies of a function f(x, n) (x: int32 pointer, n: int32); every value `m` that the outer loop carries bounds an inner loop
LOST = {
    "upper bound": "for i in range(m):\n    s += load(x + 100 + i)\nm = t",
    "lower bound": "for i in range(m, 100):\n    s += load(x + 100 + i)\nm = t",
    "step": "for i in range(0, 100, m):\n    s += load(x + 100 + i)\nm = t",
    "computed bound": "c = (m + 3) // 4\nfor i in range(c):\n    s += load(x + 100 + i)\nm = t",
    "changed by itself": "for i in range(m):\n    s += load(x + 100 + i)\nm = m + 1",
    "changed now and then": "if j > 2:\n    m = t\nfor i in range(m):\n    s += load(x + 100 + i)",
    "two loops down": "for u in range(3):\n    for i in range(m):\n        s += load(x + 100 + i)\nm = t",
    "unrolled loop between": "for u in static_range(2):\n    for i in range(m):\n        s += load(x + 100 + i)\nm = t",
    "no sum": "for i in range(m):\n    store(x + 200 + i, j)\nm = t",
    "through a function": "s = inner(x, m, s)\nm = t",
}
#: the same with another use that keeps the value
KEPT = {
    "added": "for i in range(m):\n    s += load(x + 100 + i)\ns += m\nm = t",
    "used in the inner body": "for i in range(m):\n    s += load(x + 100 + i) * m\nm = t",
    "tested": "if m > 3:\n    for i in range(m):\n        s += load(x + 100 + i)\nm = t",
    "bound of a while": "i = 0\nwhile i < m:\n    s += load(x + 100 + i)\n    i += 1\nm = t",
    "loaded in the body": "m = t\nfor i in range(m):\n    s += load(x + 100 + i)",
    "stored": "for i in range(m):\n    s += load(x + 100 + i)\nstore(x + j, m)\nm = t",
}
#: refused although this compiler happens to keep the value: the use is of the next value, not of the bound
CAUTIOUS = {"next value used": "for i in range(m):\n    s += load(x + 100 + i)\nm = t\ns += m"}
INNER = """
@jit
def inner(x, c, s):
    for i in range(c):
        s += load(x + 100 + i)
    return s
"""


def function(body: str) -> str:
    head = "@jit\ndef f(x, n):\n    m = load(x)\n    s = 0\n    for j in range(n):\n        t = load(x + j)\n"
    return head + textwrap.indent(body, "        ") + "\n    store(x, s)\n"


def finds(body: str) -> list[str]:
    inner = ast.parse(INNER).body[0]
    known = {"inner": bound_parameters(inner, {})}
    return [what for _, what, *_ in bounds_only_carries(ast.parse(function(body)).body[0], known)]


@pytest.mark.parametrize("name", [*LOST, *CAUTIOUS])
def test_lost_bound_is_found(name):
    assert finds((LOST | CAUTIOUS)[name]) == ["this loop changes m, which only bounds an inner loop"]


@pytest.mark.parametrize("name", KEPT)
def test_kept_bound_is_no_finding(name):
    assert finds(KEPT[name]) == []


def test_bounds_of_a_function():
    assert bound_parameters(ast.parse(INNER).body[0], {}) == {1}
    outer = "@jit\ndef g(c, x, d):\n    for u in range(d):\n        store(x, inner(x, c, u))\n"
    assert bound_parameters(ast.parse(outer).body[0], {"inner": frozenset({1})}) == {0, 2}


def test_reads_after_the_loop():
    """A result that is read keeps its loop-carried value; a name that is first assigned anew does not."""
    body = "for i in range(m):\n    s += load(x + 100 + i)\nm = t"
    kept = function(body) + "    store(x + 1, m)\n"
    lost = function(body) + "    m = s\n    store(x + 1, m)\n"
    assert not list(bounds_only_carries(ast.parse(kept).body[0], {}))
    assert list(bounds_only_carries(ast.parse(lost).body[0], {}))


def test_a_value_that_waits_one_iteration_is_lost_too():
    body = "for i in range(m):\n    s += load(x + 100 + i)\nm = u\nu = t"
    source = function(body).replace("    s = 0\n", "    s = 0\n    u = 0\n")
    assert [what for _, what, *_ in bounds_only_carries(ast.parse(source).body[0], {})] == ["this loop changes m, which only bounds an inner loop"]


def carried_values(body: str) -> int:
    """Values that the compiled outer loop carries."""
    prelude = """
        from triton.experimental import gluon
        from triton.experimental.gluon import language as gl

        jit = gluon.jit
        load = gl.load
        store = gl.store
        static_range = gl.static_range
    """
    kernel = "@jit\ndef kernel(x, n):\n    f(x, n)\n"
    text = "\n\n".join([inspect.cleandoc(prelude), INNER, function(body), kernel])
    ttgir = compile_module(text, "kernel", {"x": "*i32", "n": "i32"}, num_warps=4).asm["ttgir"]
    outer = next(line for line in ttgir.splitlines() if "scf.for" in line)
    return outer.split("iter_args")[1].split("->")[0].count("=") if "iter_args" in outer else 0


@needs_triton_3_6
@pytest.mark.parametrize("name", LOST)
def test_the_compiler_drops_it(name):
    sums = 0 if name == "no sum" else 1
    assert carried_values(LOST[name]) == sums


@needs_triton_3_6
@pytest.mark.parametrize("name", [n for n in KEPT if n != "loaded in the body"])
def test_the_compiler_keeps_it(name):
    assert carried_values(KEPT[name]) == 2


@pytest.mark.parametrize(
    ("text", "static"),
    [
        *((text, True) for text in ("SIZE", "SIZE == 2 and ROWS > 3", "c + 1", "n is None", "min(SIZE, 3)", "-1")),
        *((text, False) for text in ("n", "len(t)", "load(SIZE)", "args.window", "t[0]")),
    ],
)
def test_static(text, static):
    assert is_static(ast.parse(text, mode="eval").body, frozenset({"c"})) is static
