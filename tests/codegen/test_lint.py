"""Each rule of the lint refuses its text at the right line; what kernel text may use passes; and the JIT of Triton 3.6 really refuses what is refused here."""

import ast
import inspect
import textwrap
from pathlib import Path

import pytest
import triton

import tle_attn.components
from tle_attn.build import compile_module
from tle_attn.codegen.lint import lint
from tle_attn.codegen.source import functions_of
from tle_attn.errors import LintError

#: Triton from which the refusals and miscompiles were taken; later ones accept some of these texts
TRITON = "3.6"
needs_triton_3_6 = pytest.mark.skipif(not triton.__version__.startswith(TRITON), reason=f"the rules are those of Triton {TRITON}; here is {triton.__version__}")


class Case:
    """A device function `f(x, n)` (x: int32 pointer, n: int32) whose body breaks one rule, at the line marked `#!`."""

    def __init__(self, body: str, says: str, *, signature: str = "x, n", jit: str = "refuses", call: str = "f(x, n)"):
        lines = [f"def f({signature}):", *textwrap.indent(textwrap.dedent(body).strip("\n"), "    ").splitlines()]
        self.bad = next((i for i, line in enumerate(lines) if "#!" in line), 0) + 1
        self.source = "\n".join(["@jit", *lines]).replace("  #!", "")
        self.says, self.jit, self.call = says, jit, call


CASES = {
    "break": Case("for i in range(n):\n    if i > 3:\n        break  #!\n    store(x + i, i)", "`break`"),
    "continue": Case("for i in range(n):\n    if i > 3:\n        continue  #!\n    store(x + i, i)", "`continue`"),
    "list comprehension": Case("a = [load(x + i) for i in range(4)]  #!\nstore(x, a[0])", "comprehension"),
    "set comprehension": Case("a = {i for i in (1, 2)}  #!\nstore(x, n)", "comprehension"),
    "dict comprehension": Case("a = {i: i for i in (1, 2)}  #!\nstore(x, n)", "comprehension"),
    "generator": Case("a = tuple(i for i in (1, 2))  #!\nstore(x, a[0])", "generator"),
    "lambda": Case("g = lambda v: v + 1  #!\nstore(x, g(n))", "lambda"),
    "nested function": Case("def g(v):  #!\n    return v + 1\nstore(x, g(n))", "function inside"),
    "class": Case("class A:  #!\n    pass\nstore(x, n)", "class"),
    "try": Case("try:  #!\n    store(x, n)\nexcept ValueError:\n    pass", "`try`"),
    "with": Case("with load(x):  #!\n    store(x, n)", "`with`"),
    "raise": Case("raise ValueError  #!", "`raise`"),
    "yield": Case("yield n  #!", "`yield`"),
    "await": Case("await n  #!", "`await`", jit="cannot be written"),
    "match": Case("match n:  #!\n    case 1:\n        store(x, n)", "`match`"),
    "del": Case("a = n\ndel a  #!\nstore(x, n)", "`del`"),
    "import": Case("import math  #!\nstore(x, n)", "import"),
    "from import": Case("from math import pi  #!\nstore(x, n)", "import"),
    "global": Case("global SIZE  #!\nstore(x, SIZE)", "`global`"),
    "walrus": Case("store(x, (a := n) + a)  #!", "inside an expression"),
    "dict": Case('d = {"a": n}  #!\nstore(x, n)', "dict"),
    "set": Case("d = {1, 2}  #!\nstore(x, n)", "set"),
    "f-string": Case('s = f"{n}"  #!\nstore(x, n)', "f-string"),
    "percent formatting": Case('s = "%d" % 3  #!\nstore(x, n)', "string formatting"),
    "format": Case('s = "{}".format(3)  #!\nstore(x, n)', "string formatting"),
    "string value": Case('s = ".cg"  #!\nstore(x, n, cache_modifier=s)', "as a value"),
    "complex number": Case("a = 3j  #!\nstore(x, n)", "constant"),
    "ellipsis": Case("a = ...  #!\nstore(x, n)", "constant"),
    "star parameters": Case("store(x, a[0])", "`*` parameters", signature="x, *a"),
    "double star parameters": Case("store(x, 1)", "`**` parameters", signature="x, **a", call="f(x, a=n)"),
    "keyword-only parameters": Case("store(x, a)", "keyword-only", signature="x, *, a", call="f(x, a=n)"),
    "positional-only parameters": Case("store(x, n)", "positional-only", signature="x, /, n"),
    "default": Case("store(x, a)", "the default `1`", signature="x, n, a=1", jit="accepts"),
    "annotation": Case("store(x, n)", "annotation", signature="x, n: int", jit="accepts"),
    "annotated variable": Case("a: int = 3  #!\nstore(x, a)", "annotation", jit="accepts"),
    "annotation without value": Case("a: constexpr  #!\nstore(x, n)", "without a value", jit="accepts"),
    "starred argument": Case("t = (x, n)\nstore(*t)  #!", "unpacking", jit="accepts"),
    "double-starred argument": Case("store(x, n, **n)  #!", "unpacking"),
    "starred target": Case("a, *b = (n, n, n)  #!\nstore(x, a)", "unpacking"),
    "chained comparison": Case("store(x, 1 if 0 < n < 3 else 2)  #!", "chained comparison"),
    "in": Case("store(x, 1 if n in (1, 2) else 0)  #!", "`in` comparison"),
    "not in": Case("store(x, 1 if n not in (1, 2) else 0)  #!", "`in` comparison"),
    "is": Case("if n is SIZE:  #!\n    store(x, 1)", "`is` comparison", jit="miscompiles"),
    "for-else": Case("for i in range(n):\n    store(x + i, i)\nelse:\n    store(x, 0)  #!", "`else` of a loop"),
    "while-else": Case("i = 0\nwhile i < n:\n    i += 1\nelse:\n    store(x, i)  #!", "`else` of a loop"),
    "return in a loop": Case("for i in range(n):\n    if i > 3:\n        return i  #!\nreturn n", "`return` inside a loop", call="store(x, f(x, n))"),
    "return in a while": Case(
        "i = 0\nwhile i < n:\n    if i > 3:\n        return i  #!\n    i += 1\nreturn n", "`return` inside a loop", call="store(x, f(x, n))"
    ),
    "endless loop": Case("while True:  #!\n    store(x, n)", "`while True`"),
    "loop over a tuple": Case("for i in (1, 2, 3):  #!\n    store(x + i, n)", "a loop over"),
    "loop over a tuple of names": Case("for i, j in range(n):  #!\n    store(x + i, n)", "several variables"),
    "keyword of range": Case("for i in range(0, n, step=2):  #!\n    store(x + i, n)", "loop bounds", jit="miscompiles"),
    "static_range over a variable": Case("m = n + 1\nfor i in static_range(m):  #!\n    store(x + i, n)", "static_range over the variable m"),
    "index of static_range assigned": Case(
        "for c in static_range(2):  #!\n    store(x + c, n)\nfor i in range(n):\n    c = i + 1\n    store(x + c, n)", "static_range loop and a variable"
    ),
    "index of static_range as a loop variable": Case(
        "for c in range(n):  #!\n    store(x + c, n)\nfor c in static_range(2):\n    store(x + c, n)", "static_range loop and a variable", jit="accepts"
    ),
    "tuple that grows": Case("a = ()\nfor i in range(n):\n    a = a + (i,)  #!\nstore(x, n)", "tuple that grows"),
    "choice of tuples": Case("a = (n, n) if n > 3 else (n, 1)  #!\nstore(x, a[0])", "choice between tuples"),
    "subscript target": Case("t = (n, n)\nt[0] = 3  #!\nstore(x, t[0])", "assignment to `t[0]`"),
    "attribute target": Case("n.dtype = 3  #!\nstore(x, n)", "assignment to `n.dtype`"),
    "two targets": Case("a = b = n  #!\nstore(x, a + b)", "several assignments"),
    "nested target": Case("(a, b), c = (n, n), n  #!\nstore(x, a + b + c)", "assignment to `((a, b), c)`"),
    "list target": Case("[a, b] = (n, n)  #!\nstore(x, a + b)", "assignment to `[a, b]`"),
    "slice": Case("a = vec_index(32)\nb = a[1:3]  #!\nstore(x, n)", "slice with bounds"),
    "power": Case("store(x, n ** 2)  #!", "`**`"),
    "matmul": Case("store(x, n @ n)  #!", "`@`"),
    "print": Case("print(n)  #!\nstore(x, n)", "`print`"),
    "abs": Case("store(x, abs(n))  #!", "Python's `abs`"),
    "tuple()": Case("a = tuple((n, n))  #!\nstore(x, a[0])", "Python's `tuple`"),
    "unknown method": Case("store(x, n.item())  #!", "`.item`", jit="accepts"),
    "transpose attribute": Case("a = n.T  #!\nstore(x, n)", "`.T`"),
    "call of an expression": Case("(store if SIZE == 4 else load)(x, n)  #!", "no name", jit="accepts"),
    "shadowed operation": Case("load = n  #!\nstore(x, load)", "load is an operation", jit="accepts"),
    "shadowing parameter": Case("store(x, where)", "where is an operation", signature="x, where", jit="accepts"),
    "shadowing loop variable": Case("for rows in range(n):  #!\n    store(x + rows, n)", "rows is an operation", jit="accepts"),
    "shadowed Python name": Case("max = n  #!\nstore(x, max)", "max has Python's meaning", jit="accepts"),
    "assigned spec constant": Case("SIZE = n  #!\nstore(x, SIZE)", "SIZE is given a new meaning", jit="accepts"),
    "assigned args": Case("args = n  #!\nstore(x, args)", "args stands for", jit="accepts"),
    "args as a value": Case("store(x, args)  #!", "args as a value", signature="args, x, n", call="f(1, x, n)", jit="accepts"),
    "args in another place": Case("g(x, args)  #!", "args as a value", signature="args, x, n"),
    "args as a later parameter": Case("store(x, n)", "not the first parameter", signature="x, n, args", call="f(x, n, n)", jit="accepts"),
    "two statements on a line": Case("a = n; b = n  #!\nstore(x, a + b)", "two statements on a line", jit="accepts"),
    "statement behind a colon": Case("if n > 3: store(x, n)  #!", "two statements on a line", jit="accepts"),
    "second decorator": Case("store(x, n)", "decorators"),
    "not ASCII": Case("store(x, n)  # \N{GREEK SMALL LETTER ALPHA} #!", "not ASCII", jit="accepts"),
    "value of one branch": Case("if n > 3:\n    a = n\nstore(x, a)  #!", "a is read where it may have no value"),
    "value of a loop's body": Case("for i in range(n):\n    a = i\nstore(x, a)  #!", "a is read where it may have no value"),
    "value of a while's body": Case("i = 0\nwhile i < n:\n    a = i\n    i += 1\nstore(x, a)  #!", "a is read where it may have no value"),
    "read before the first assignment": Case("for i in range(n):\n    store(x + i, a)  #!\n    a = i", "a is read where it may have no value"),
    "updated before the first assignment": Case("a += n  #!\nstore(x, a)", "a is read where it may have no value"),
    "loop variable after its loop": Case("for i in range(n):\n    store(x + i, n)\nstore(x, i)  #!", "loop variable i is read after", jit="miscompiles"),
    "loop variable over an older value": Case(
        "i = n + 5\nfor i in range(n):\n    store(x + i, n)\nstore(x, i)  #!", "loop variable i is read after", jit="miscompiles"
    ),
}  # fmt: skip
CASES["second decorator"].source = "@jit\n" + CASES["second decorator"].source
CASES["second decorator"].bad = 2
CASES["await"].source = CASES["await"].source.replace("def f", "async def f")
CASES["await"].bad, CASES["await"].says = 1, "async function"

ACCEPTED = {
    "tuples": "a = (n, 1)\na = a + (n,)\nb, c, d = a\nstore(x + len(a), b + c + d + a[0])",
    "choice": "store(x, n if n > 3 else -1)",
    "static choice of tuples": "a = (n, 1) if SIZE == 4 else (n, 2)\nstore(x, a[1])",
    "early return": "if n > 3:\n    return n\nif n > 2:\n    return n + 1\nelse:\n    return n + 2",
    "return in an unrolled loop": "for c in static_range(SIZE):\n    if c == 2:\n        return n + c\nreturn n",
    "while": "i = 0\nwhile (i < n) and not (i == 7):\n    store(x + i, i)\n    i += 1",
    "docstring and comments": '"""A docstring: "%d" % 3 is no text here."""\n# a comment\nstore(x, n)  # another',
    "methods": "a = n.to(I32)\nb = vec_index(32)[:, None]\nstore(x, a)",
    "args": "store(args.pointer + args.index, n)",
    "string options": 'atomic_add(x, 1, sem="release")\nstore(x, float("-inf"))',
    "None": "if n is not None:\n    store(x, n)",
    "unrolled index used twice": "for c in static_range(2):\n    store(x + c, n)\nfor c in static_range(3):\n    store(x + c, n)",
    "value of both branches": "if n > 3:\n    a = n\nelse:\n    a = n + 1\nstore(x, a)",
    "value of a static branch": "if SIZE == 4:\n    a = n\nif SIZE == 4:\n    store(x, a)",
    "value before an early return": "if n > 3:\n    a = n\nelse:\n    return n\nreturn a",
    "value of an unrolled loop": "for c in static_range(2):\n    a = n + c\nstore(x, a)",
    "loop variable used twice": "for i in range(n):\n    store(x + i, n)\nfor i in range(0, n, 2):\n    store(x + i, i)",
    "static power": "store(x, SIZE ** 2)",
    "constant": "a: constexpr = 3\nfor c in static_range(a):\n    store(x + c, n)",
    "parameter reassigned": "n = n + 1\nstore(x, n)",
    "bound loaded in the body": "for j in range(n):\n    m = load(x + j)\n    for i in range(m):\n        store(x + i, j)",
    "bound with another use": "m = load(x)\nfor j in range(n):\n    for i in range(m):\n        store(x + i, m)\n    m = load(x + j)",
    "bound of a while": "m = load(x)\nfor j in range(n):\n    i = 0\n    while i < m:\n        store(x + i, j)\n        i += 1\n    m = load(x + j)",
}


@pytest.mark.parametrize("name", CASES)
def test_refused_with_line_reason_and_way_out(name):
    case = CASES[name]
    with pytest.raises(LintError) as caught:
        lint(case.source, "block.py", 100)
    where, because, instead = str(caught.value).splitlines()
    assert where.startswith(f"block.py:{100 + case.bad}: "), where
    assert case.says in str(caught.value)
    assert because.startswith("  because  ") and instead.startswith("  instead  ")


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    lint("@jit\ndef f(args, x, n):\n" + textwrap.indent(ACCEPTED[name], "    "), "block.py", 1)


def test_block_library_passes():
    files = [f for folder in tle_attn.components.__path__ for f in Path(folder).rglob("*.py")]
    texts = [t for f in files for t in functions_of(f, "block")]
    assert len(texts) > 30
    for text in texts:
        lint(text.source, text.file, text.line)


def module_of(case: Case) -> str:
    """The case's function in a module as the linker writes it: the Gluon names it uses, a constant, and a kernel that calls it."""
    prelude = """
        from triton.experimental import gluon
        from triton.experimental.gluon import language as gl

        jit = gluon.jit
        load = gl.load
        store = gl.store
        where = gl.where
        static_range = gl.static_range
        constexpr = gl.constexpr
        SIZE = constexpr(4)


        @jit
        def vec_index(n):
            return gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    """
    kernel = f"@jit\ndef kernel(x, n):\n    {case.call}\n"
    return "\n\n".join([inspect.cleandoc(prelude), case.source, kernel])


def compile_case(case: Case):
    return compile_module(module_of(case), "kernel", {"x": "*i32", "n": "i32"}, num_warps=4)


@needs_triton_3_6
@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.jit == "refuses"])
def test_the_jit_refuses_it_too(name):
    with pytest.raises(Exception) as caught:  # a CompileError, or what the JIT's decorator raises
        compile_case(CASES[name])
    assert not isinstance(caught.value, (SyntaxError, ImportError)), "the case itself is broken"


@needs_triton_3_6
def test_the_harness_compiles_what_is_right():
    assert "tt.store" in compile_case(Case("store(x, n)", "")).asm["ttgir"]


@needs_triton_3_6
@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.jit == "accepts"])
def test_rules_of_our_own_are_no_jit_errors(name):
    """These texts compile: the rule has another reason (the linker, the other targets, or what a reader expects), and its message says so."""
    compile_case(CASES[name])


@needs_triton_3_6
class TestMiscompiles:
    """The JIT accepts these texts and makes other code of them than Python means."""

    def ttgir(self, name: str) -> str:
        return compile_case(CASES[name]).asm["ttgir"]

    def test_loop_variable_is_undefined_after_its_loop(self):
        assert "ub.poison" in self.ttgir("loop variable after its loop")
        assert "ub.poison" in self.ttgir("loop variable over an older value")

    def test_identity_is_false_before_compilation(self):
        assert "tt.store" not in self.ttgir("is")

    def test_keywords_of_range_are_dropped(self):
        text = self.ttgir("keyword of range")
        assert "arith.constant 2" not in text and "scf.for" in text


def test_every_case_is_valid_python():
    for case in CASES.values():
        ast.parse(case.source)
