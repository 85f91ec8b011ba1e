"""Rules about calls between device functions: each refuses its text, and the JIT of Triton 3.6 refuses or miscompiles it too."""

import ast
import inspect

import pytest
import triton

from tle_attn.build import compile_module
from tle_attn.codegen.lint import lint
from tle_attn.codegen.lint_program import lint_program
from tle_attn.codegen.source import Text
from tle_attn.errors import LintError

needs_triton_3_6 = pytest.mark.skipif(not triton.__version__.startswith("3.6"), reason=f"the rules are those of Triton 3.6; here is {triton.__version__}")

RECURSION = """
@jit
def f(x, n):
    if n > 3:
        g(x, n - 1)


@jit
def g(x, n):
    f(x, n)
"""
CONSTANT_IN_A_LOOP = """
@jit
def g(x, c, n):
    for i in range(n):
        c = c + 1
    store(x, c)


@jit
def f(x, n):
    g(x, SIZE, n)
"""
CONSTANT_UNDER_IF = """
@jit
def g(x, n, c):
    if n > 3:
        c = n
    store(x, c)


@jit
def f(x, n):
    g(x, n, -1)
"""
LOST_BOUND = """
@jit
def g(x, n):
    for i in range(n):
        store(x + i, n)


@jit
def h(x, c):
    for i in range(c):
        store(x + i, i)


@jit
def f(x, n):
    m = load(x)
    for j in range(n):
        h(x, m)
        m = load(x + j)
"""
UNPACKING = """
@jit
def g(n):
    return n, n + 1, n + 2


@jit
def f(x, n):
    a, b = g(n)
    store(x, a + b)
"""
KEYWORD = UNPACKING.replace("a, b = g(n)", "a, b, c = g(n=n)")
REFUSED = {
    "too few arguments": (UNPACKING.replace("a, b = g(n)", "a, b, c = g()"), 9, "0 values are passed to g, which takes 1: n"),
    "too many arguments": (UNPACKING.replace("a, b = g(n)", "a, b, c = g(n, x)"), 9, "2 values are passed to g, which takes 1: n"),
    "keyword": (KEYWORD, 9, "the keyword n in a call of g"),
    "recursion": (RECURSION, 3, "recursion: f -> g -> f"),
    "constant in a loop": (CONSTANT_IN_A_LOOP, 11, "the constant SIZE is passed for c, which g changes"),
    "constant under if": (CONSTANT_UNDER_IF, 11, "the constant -1 is passed for c, which g changes"),
    "lost bound": (LOST_BOUND, 17, "changes m, which only bounds an inner loop"),
    "unpacking": (UNPACKING, 9, "g returns 3 values, and 2 names take them"),
}
ACCEPTED = {
    "constant copied first": CONSTANT_IN_A_LOOP.replace("    for i", "    d = c\n    for i").replace("c = c + 1", "d = d + 1"),
    "parameter made a variable first": CONSTANT_IN_A_LOOP.replace("    for i", "    c = c + n\n    for i"),
    "changed in an unrolled loop": CONSTANT_IN_A_LOOP.replace("range(n)", "static_range(3)"),
    "changed under a static if": CONSTANT_UNDER_IF.replace("if n > 3", "if SIZE == 4"),
    "variable passed": CONSTANT_IN_A_LOOP.replace("g(x, SIZE, n)", "g(x, n, n)"),
    "all values named": UNPACKING.replace("a, b = g(n)", "a, b, c = g(n)"),
}


def texts_of(source: str) -> tuple[Text, ...]:
    lines = source.splitlines()
    found = []
    for node in ast.parse(source).body:
        first = node.decorator_list[0].lineno
        found.append(Text(node.name, "block", "\n".join(lines[first - 1 : node.end_lineno]), "block.py", first))
    return tuple(found)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    source, line, says = REFUSED[name]
    for text in texts_of(source):
        lint(text.source, text.file, text.line)  # each function alone is right
    with pytest.raises(LintError, match="because") as caught:
        lint_program(texts_of(source))
    assert str(caught.value).startswith(f"block.py:{line}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    lint_program(texts_of(ACCEPTED[name]))


def ttgir_of(source: str) -> str:
    prelude = """
        from triton.experimental import gluon
        from triton.experimental.gluon import language as gl

        jit = gluon.jit
        load = gl.load
        store = gl.store
        static_range = gl.static_range
        SIZE = gl.constexpr(4)
    """
    text = "\n\n".join([inspect.cleandoc(prelude), source, "@jit\ndef kernel(x, n):\n    f(x, n)\n"])
    return compile_module(text, "kernel", {"x": "*i32", "n": "i32"}, num_warps=4).asm["ttgir"]


@needs_triton_3_6
@pytest.mark.parametrize("name", ["recursion", "constant in a loop", "constant under if"])
def test_the_jit_refuses_it_too(name):
    with pytest.raises(Exception) as caught:
        ttgir_of(REFUSED[name][0])
    assert not isinstance(caught.value, (SyntaxError, ImportError))


@needs_triton_3_6
@pytest.mark.parametrize("name", ACCEPTED)
def test_the_jit_accepts_it_too(name):
    assert "tt.store" in ttgir_of(ACCEPTED[name])


@needs_triton_3_6
def test_the_jit_miscompiles_the_rest():
    outer = next(line for line in ttgir_of(LOST_BOUND).splitlines() if "scf.for" in line)
    assert "iter_args" not in outer, "the outer loop carries m"
    assert "tt.store" in ttgir_of(UNPACKING), "a third value without a name is dropped"
