"""Edits of block text: each result is compared with text written by hand, and stays valid Python."""

import ast
import textwrap

import pytest

from tle_attn.codegen.source import (
    Text,
    drop_parameters,
    flatten_arguments,
    free_names,
    functions_of,
    is_empty,
    local_names,
    microkernel_file,
    prune,
    remove_statements,
    replace_spans,
    unused_parameters,
    used_arguments,
    wrap,
)
from tle_attn.errors import LinkError

VALUES = {"ON": True, "OFF": False, "N": 3}


def clean(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def function(source: str) -> ast.FunctionDef:
    return ast.parse(clean(source)).body[0]


PRUNED = {
    "true branch with its comment": (
        """
        def f(x):
            if ON:
                # why
                a = 1
            else:
                # why not
                a = 2
            return a
        """,
        """
        def f(x):
            # why
            a = 1
            return a
        """,
    ),
    "false branch with its comment": (
        """
        def f(x):
            if OFF:
                # why
                a = 1
            else:
                # why not
                a = 2
            return a
        """,
        """
        def f(x):
            # why not
            a = 2
            return a
        """,
    ),
    "no branch left": ("def f(x):\n    if OFF:\n        g(x)", "def f(x):\n    pass"),
    "expressions of constants": ("def f(x):\n    if ON and N > 2:\n        g(x)", "def f(x):\n    g(x)"),
    "nested": ("def f(x):\n    if ON:\n        if OFF:\n            g(x)\n        else:\n            h(x)", "def f(x):\n    h(x)"),
    "inside a dynamic if": ("def f(x):\n    if x:\n        if OFF:\n            g(x)\n    h(x)", "def f(x):\n    if x:\n        pass\n    h(x)"),
    "condition over two lines": ("def f(x):\n    if (ON and\n            N):\n        g(x)", "def f(x):\n    g(x)"),
    "elif behind a false if": ("def f(x):\n    if OFF:\n        g(x)\n    elif x:\n        h(x)\n    else:\n        i(x)", "def f(x):\n    if x:\n        h(x)\n    else:\n        i(x)"),
    "elif behind a true if": ("def f(x):\n    if ON:\n        g(x)\n    elif x:\n        h(x)", "def f(x):\n    g(x)"),
    "true elif": ("def f(x):\n    if x:\n        g(x)\n    elif ON:\n        h(x)\n    else:\n        i(x)", "def f(x):\n    if x:\n        g(x)\n    else:\n        h(x)"),
    "false elif": ("def f(x):\n    if x:\n        g(x)\n    elif OFF:\n        h(x)\n    else:\n        i(x)", "def f(x):\n    if x:\n        g(x)\n    else:\n        i(x)"),
    "false elif without else": ("def f(x):\n    if x:\n        g(x)\n    elif OFF:\n        h(x)\n    i(x)", "def f(x):\n    if x:\n        g(x)\n    i(x)"),
    "false elif in a chain": (
        "def f(x):\n    if x:\n        g(x)\n    elif OFF:\n        h(x)\n    elif x > 5:\n        i(x)\n    else:\n        j(x)",
        "def f(x):\n    if x:\n        g(x)\n    elif x > 5:\n        i(x)\n    else:\n        j(x)",
    ),
    "choices": ("def f(x):\n    return (1 if ON else x) + (2 if OFF else 3 * x) * (4 if x else 5)", "def f(x):\n    return (1) + (3 * x) * (4 if x else 5)"),
    "calls and attributes stay": ("def f(x):\n    if len(N):\n        g(x)\n    if ON or x:\n        h(x)", "def f(x):\n    if len(N):\n        g(x)\n    if ON or x:\n        h(x)"),
    "literals alone stay": ("def f(x):\n    if 1:\n        g(x)", "def f(x):\n    if 1:\n        g(x)"),
}  # fmt: skip


@pytest.mark.parametrize("name", PRUNED)
def test_prune(name):
    before, after = PRUNED[name]
    assert prune(clean(before), VALUES) == clean(after)


@pytest.mark.parametrize("x", [0, 1, 9])
@pytest.mark.parametrize("name", PRUNED)
def test_pruned_text_does_the_same(name, x):
    """What the text does does not depend on when its constants are looked at."""

    def calls(source: str) -> list:
        seen: list = []
        scope = {**VALUES, **{n: (lambda *a, n=n: seen.append((n, a))) for n in "ghij"}, "len": lambda n: n}
        exec(source, scope)
        return [*seen, scope["f"](x)]

    before = clean(PRUNED[name][0])
    assert calls(before) == calls(prune(before, VALUES))


def test_remove_statements_leaves_pass_in_empty_bodies():
    source = clean("""
        def f(x):
            if x:
                g(x,
                  1)
            else:
                g(x)
                h(x)
            for i in range(x):
                g(i)
    """)
    tree = ast.parse(source)
    doomed = [n for n in ast.walk(tree) if isinstance(n, ast.Expr) and n.value.func.id == "g"]
    assert remove_statements(source, doomed) == clean("""
        def f(x):
            if x:
                pass
            else:
                h(x)
            for i in range(x):
                pass
    """)


def test_replace_spans():
    assert replace_spans("ab cd\nef gh", [(1, 0, 1, 2, "x"), (2, 3, 2, 5, "y")]) == "x cd\nef y"
    assert replace_spans("f(a, b)", [(1, 2, 1, 3, "")]) == "f(b)"
    assert replace_spans("f(a,\n  b)", [(1, 2, 1, 3, "")]) == "f(b)"
    assert replace_spans("f(a)", [(1, 2, 1, 3, "")]) == "f()"
    assert replace_spans("a\nb c\nd", [(1, 0, 2, 1, "x")]) == "x c\nd"


NEED = {"f": ["a", "b"], "g": ["a"], "none": []}
FLATTENED = {
    "parameter, use and call": ("def f(args, x):\n    return args.b + g(args, x) + g(args)", "def f(a, b, x):\n    return b + g(a, x) + g(a)"),
    "callee that needs none": ("def f(args, x):\n    none(args, x)\n    none(args)\n    none(args,\n         args.a)", "def f(a, b, x):\n    none(x)\n    none()\n    none(a)"),
    "function that needs none": ("def none(args, x):\n    return x", "def none(x):\n    return x"),
    "only parameter": ("def none(args):\n    return 1", "def none():\n    return 1"),
    "roles": ("def f(args, x):\n    run([(g, (args, x)), (g, (args,))], [1])", "def f(a, b, x):\n    run([(g, (a, x)), (g, (a,))], [1])"),
    "roles that need none": (
        "def f(args, x):\n    run([(none, (args, x)), (none, (args, x, x)), (none, (args,)), (none, (args, x,))], [1])",
        "def f(a, b, x):\n    run([(none, (x,)), (none, (x, x)), (none, ()), (none, (x,))], [1])",
    ),
    "local names of arguments": (
        "def f(args, x):\n    a = args.a + x\n    a_ = 1\n    return g(args, a) + args.a + a_", "def f(a, b, x):\n    a__ = a + x\n    a_ = 1\n    return g(a, a__) + a + a_"
    ),
    "parameters with names of arguments": ("def g(args, a):\n    return a + args.a", "def g(a, a_):\n    return a_ + a"),
    "uses inside of a role's arguments": ("def f(args, x):\n    run([(none, (args, args.b))], [1])", "def f(a, b, x):\n    run([(none, (b,))], [1])"),
}  # fmt: skip


@pytest.mark.parametrize("name", FLATTENED)
def test_flatten_arguments(name):
    before, after = FLATTENED[name]
    text = Text(function(before).name, "block", before, "block.py", 10)
    assert ast.dump(ast.parse(flatten_arguments(text, NEED).source)) == ast.dump(ast.parse(after))
    if name != "roles that need none":  # a comma may stay where there was one
        assert flatten_arguments(text, NEED).source == after


def test_args_for_a_function_that_is_none():
    with pytest.raises(LinkError, match=r"block\.py:11: f passes args to store, which is no device function"):
        flatten_arguments(Text("f", "block", "def f(args, x):\n    store(args, x)", "block.py", 10), NEED)


class TestUnusedParameters:
    @pytest.mark.parametrize("source,unused", [
        ("def f(args, x, y):\n    return x", {2}), ("def f(x, y):\n    y = 1\n    return x + y", set()), ("def f(x):\n    x += 1", set()), ("def f(args):\n    pass", set()),
    ])  # fmt: skip
    def test_found(self, source, unused):
        assert unused_parameters(ast.parse(source).body[0]) == unused

    @pytest.mark.parametrize("before,after", [
        ("def f(args, x, y, z):\n    return z", "def f(args, z):\n    return z"),
        ("def h(a):\n    return f(a, 1, 2, 3) + f(a,\n        1, 2,\n        3)", "def h(a):\n    return f(a, 3) + f(a, 3)"),
        ("def h(a):\n    return f(g(a, 1), g(2, a), a, g(a, g(3, 4)))", "def h(a):\n    return f(g(1), g(g(4)))"),
        ("def h(a):\n    return f(g(a, a), 1, 2, 3)", "def h(a):\n    return f(g(a), 3)"),
        ("def h(args, a):\n    run([(f, (args, a, a, a)), (g, (args, a)), (other, (args, a))])", "def h(args, a):\n    run([(f, (args, a)), (g, (a,)), (other, (args, a))])"),
        ("def h(args, a):\n    run([(last, (args, a))])", "def h(args, a):\n    run([(last, (args,))])"),
        ("def h(args, a):\n    run([(last, (args, a,))])", "def h(args, a):\n    run([(last, (args,))])"),
        ("def last(args, a):\n    pass", "def last(args):\n    pass"),
        ("def only(a):\n    only(a)", "def only():\n    only()"),
    ])  # fmt: skip
    def test_dropped_here_and_at_every_call(self, before, after):
        unused = {"f": {1, 2}, "g": {0}, "last": {1}, "only": {0}}
        assert drop_parameters(before, before[4 : before.index("(")], unused) == after


class TestWrap:
    NAMES = ", ".join(f"argument_{i}" for i in range(20))

    def wrapped(self, body: str) -> str:
        source = f"def f():\n{body}"
        result = wrap(source)
        assert ast.dump(ast.parse(result)) == ast.dump(ast.parse(source)), "wrapping changes no meaning"
        return result

    @pytest.mark.parametrize("body", [
        "    call({0})", "    x = call(1, deep({0}), {0})", "    return {0}", "    if call({0}):\n        pass", '    call("(", {0}, x=")")', "    x = [({0})]", "    call([({0}), (g, ({0}))])",
        "    call(\n        {0}\n    )", "    call(\n        {0}, {0} +\n        1)", "    call(\n        1, {0}, deep(2), {0},\n    )", "    call([\n        (\n            g,\n            (\n                {0}, {0}\n            ),\n        ),\n    ])",
    ])  # fmt: skip
    def test_long_lines_break_at_commas(self, body):
        result = self.wrapped(body.format(self.NAMES))
        if "return" not in body:  # nothing to break at
            assert max(map(len, result.splitlines())) <= 140

    def test_a_long_expression_keeps_its_meaning(self):
        self.wrapped(f"    x = (1 +\n        call(2) + 3\n        + deep({self.NAMES}))")

    def test_a_long_signature(self):
        result = wrap(f"def f(\n    {self.NAMES}, {self.NAMES.replace('argument', 'other')}\n):\n    pass")
        assert ast.parse(result) and max(map(len, result.splitlines())) <= 140

    def test_short_lines_stay(self):
        assert self.wrapped("    call(1, 2)") == "def f():\n    call(1, 2)"

    def test_comments_move_above_and_stay_whole(self):
        comment = "# why (this, that, and so on: a comment that ends with a bracket)"
        assert self.wrapped(f"    call({self.NAMES[:120]})  {comment}").splitlines()[1] == f"    {comment}"

    def test_strings_stay_whole(self):
        text = f'    """One.\n\n    {"a sentence, " * 15}(with brackets)\n    """\n    return 1'
        assert self.wrapped(text) == f"def f():\n{text}"


def test_names():
    tree = function("""
        @jit
        def f(args, x, y=LIMIT):
            for i in range(x):
                z, store = load(args.p + i), 1
            w: constexpr = SIZE
            return z + store + other(w)
    """)
    assert local_names(tree) == {"args", "x", "y", "i", "z", "store", "w"}
    assert free_names(tree) == {"jit", "LIMIT", "range", "load", "constexpr", "SIZE", "other"}, "a local variable hides a function of its name"
    assert used_arguments(tree) == {"p"}


@pytest.mark.parametrize("body,empty", [('"""Doc."""', True), ("pass", True), ('"""Doc."""\n    pass', True), ("return 1", False), ("f()", False)])
def test_is_empty(body, empty):
    assert is_empty(ast.parse(f"def f():\n    {body}").body[0]) is empty


def test_functions_of_a_file(tmp_path):
    file = tmp_path / "block.py"
    file.write_text(
        '"""Block."""\n\nimport os\n\n\ndef plain():\n    pass\n\n\n@jit\ndef first(x):\n    # a comment\n    return x\n\n\n@jit\ndef second():\n    pass\n'
    )
    first, second = functions_of(file, "ring")
    assert (first.name, first.owner, first.line, first.file) == ("first", "ring", 10, str(file))
    assert first.source == "@jit\ndef first(x):\n    # a comment\n    return x" and second.line == 16


def test_microkernels_lie_beside_their_block(tmp_path):
    class Block:
        @staticmethod
        def source_file():
            return tmp_path / "direct.py"

    (tmp_path / "direct.tle.py").write_text("")
    assert microkernel_file(Block, "tle") == tmp_path / "direct.tle.py"
    assert microkernel_file(Block, "cpu") is None
