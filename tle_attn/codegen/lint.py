"""Lint of block text: what the JIT refuses or miscompiles is refused here, with the line, the reason and a way out.

`lint` looks at one device function, `lint_program` at the calls between functions.  The rules were found with Triton 3.6.0, and
`tests/codegen/test_jit_refusals.py` compiles a sample of what they refuse, so that the list stays honest.  Kernel text may use tuples, lists in calls,
`x if c else y`, early return, `while`, `for` over `range` and `static_range`, docstrings, comments and the names in METHODS.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from functools import lru_cache
from typing import NoReturn

from ..dialect.table import NAMES
from ..errors import LintError
from .flow import CONSTANT, bounds_only_carries, is_static, is_static_range, reads_before_assignment, static_loop_names, stored_names
from .source import argument_sites

#: Python names that kernel text may use besides the dialect's
BUILTINS = frozenset({"range", "float", "int", "len", "min", "max", "isinstance"})
#: attributes of tiles, buffers and pointers
METHODS = frozenset({"to", "reshape", "permute", "slot", "shape", "dtype"})

#: syntax that has a place in kernel text; anything else is refused, with a reason of its own where there is one in _REFUSED
_ALLOWED = (
    ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Expr, ast.Pass, ast.Assert,
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.keyword, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Name,
    ast.List, ast.Tuple, ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip

_JUMP = ("the JIT has no jumps inside loops", "put the condition in a `while` test, or the rest of the body under `if`")
_FUNCTION = ("the JIT compiles module-level functions only", "write a device function of its own and call it")
_COMPREHENSION = ("the JIT builds no lists", "write a `static_range` loop that appends to a tuple: `t = t + (x,)`")
_CONTAINER = ("the JIT has tuples only", "use a tuple, or separate names")
_CONTROL = ("the JIT compiles no such statement", "leave it out: errors are checked on the spec, before any launch")
_SCOPE = ("a device function sees its parameters and the module's constants", "pass a parameter and return the new value")
_FORMAT = ("device code has no strings", "write the value itself; strings are options of dialect calls only")
_STAR = ("the linker and the JIT match arguments by position", "write the arguments out")

#: node type: (what, why, instead)
_REFUSED: dict[type[ast.AST], tuple[str, str, str]] = {
    ast.Break: ("`break`", *_JUMP),
    ast.Continue: ("`continue`", *_JUMP),
    ast.Lambda: ("a lambda", *_FUNCTION),
    ast.ClassDef: ("a class", *_FUNCTION),
    ast.AsyncFunctionDef: ("an async function", *_FUNCTION),
    ast.Await: ("`await`", *_FUNCTION),
    ast.Yield: ("`yield`", *_FUNCTION),
    ast.YieldFrom: ("`yield`", *_FUNCTION),
    ast.ListComp: ("a comprehension", *_COMPREHENSION),
    ast.SetComp: ("a comprehension", *_COMPREHENSION),
    ast.DictComp: ("a comprehension", *_COMPREHENSION),
    ast.GeneratorExp: ("a generator expression", *_COMPREHENSION),
    ast.Dict: ("a dict", *_CONTAINER),
    ast.Set: ("a set", *_CONTAINER),
    ast.Try: ("`try`", *_CONTROL),
    ast.TryStar: ("`try`", *_CONTROL),
    ast.Raise: ("`raise`", *_CONTROL),
    ast.With: ("`with`", *_CONTROL),
    ast.Match: ("`match`", "the JIT compiles no such statement", "write `if` and `else`"),
    ast.Delete: ("`del`", "the JIT compiles no such statement", "leave it out: a name costs nothing"),
    ast.Import: ("an import", "kernel text sees the dialect and the module's constants only", "import at the top of the block's file"),
    ast.ImportFrom: ("an import", "kernel text sees the dialect and the module's constants only", "import at the top of the block's file"),
    ast.Global: ("`global`", *_SCOPE),
    ast.Nonlocal: ("`nonlocal`", *_SCOPE),
    ast.NamedExpr: ("an assignment inside an expression", "the JIT compiles no `:=`", "assign in a statement of its own"),
    ast.JoinedStr: ("an f-string", *_FORMAT),
    ast.Starred: ("`*` unpacking", *_STAR),
}


def refuse(file: str, line: int, what: str, why: str, instead: str) -> NoReturn:
    """Raise the one form that every LintError has."""
    raise LintError(f"{file}:{line}: {what}\n  because  {why}\n  instead  {instead}")


@lru_cache(maxsize=1024)  # a function is linted once, however many kernels use it
def lint(source: str, file: str, line: int) -> None:
    """Refuse device text that the JIT refuses or miscompiles.

    Args:
        source: one decorated function.
        file, line: where it was written; `line` is its decorator's.

    Raises:
        LintError: file and line, what is wrong, why, and what to write instead.
    """
    for number, text in enumerate(source.splitlines()):
        if not text.isascii():
            refuse(file, line + number, "text that is not ASCII", "generated files are ASCII, and edits count columns in bytes", "spell it out")
    _Rules(source, file, line).check(ast.parse(source).body[0])


class _Rules:
    """The rules for one function."""

    def __init__(self, source: str, file: str, line: int):
        self.text, self.file, self.line = source.splitlines(), file, line

    def refuse(self, node: ast.AST, what: str, why: str, instead: str) -> NoReturn:
        refuse(self.file, self.line + node.lineno - 1, what, why, instead)

    def check(self, tree: ast.stmt) -> None:
        if not isinstance(tree, ast.FunctionDef):
            self.refuse(tree, *_REFUSED.get(type(tree), ("no function", *_FUNCTION)))
        self.syntax(tree)
        self.static = static_loop_names(tree)
        self.lines(tree)
        self.signature(tree)
        self.names(tree)
        self.arguments(tree)
        for node, inside in _with_loops(tree):
            for rule in (self.expressions, self.strings, self.assignments, self.loops, self.tuples):
                rule(node, inside)
        for node, what, why, instead in (*reads_before_assignment(tree), *bounds_only_carries(tree, {})):
            self.refuse(node, what, why, instead)

    def syntax(self, tree: ast.FunctionDef) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node is not tree:
                self.refuse(node, "a function inside a function", *_FUNCTION)
            if not isinstance(node, _ALLOWED):
                what, why, instead = _REFUSED.get(type(node), (f"`{type(node).__name__}` syntax", *_CONTROL))
                self.refuse(node, what, why, instead)

    def signature(self, tree: ast.FunctionDef) -> None:
        if len(tree.decorator_list) != 1 or not isinstance(tree.decorator_list[0], ast.Name):
            self.refuse(tree, "decorators besides `@jit`", "the JIT compiles the undecorated function", "leave them out")
        args = tree.args
        special = {"positional-only": args.posonlyargs, "keyword-only": args.kwonlyargs, "`*`": [args.vararg], "`**`": [args.kwarg]}
        for kind, parameters in special.items():
            if parameters and parameters[0]:
                self.refuse(parameters[0], f"{kind} parameters", *_STAR)
        for default in args.defaults:
            self.refuse(default, f"the default `{ast.unparse(default)}`", *_STAR)
        for arg in args.args:
            if arg.annotation is not None:
                self.annotation(arg.annotation)

    def annotation(self, node: ast.expr) -> None:
        if not (isinstance(node, ast.Name) and node.id == "constexpr"):
            self.refuse(node, f"the annotation `{ast.unparse(node)}`", "`constexpr` is the only one that says something to the JIT", "leave it out")

    def names(self, tree: ast.FunctionDef) -> None:
        """Names that are taken: dialect operations, Python's, spec constants, unrolled indices."""
        own: list[tuple[ast.AST, str]] = [(tree, tree.name), *((a, a.arg) for a in tree.args.args)]
        own += [(n, n.id) for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        for node, name in own:
            if name in NAMES:
                self.refuse(node, f"{name} is given a new meaning", f"{name} is an operation of the dialect", "choose another name")
            if name in BUILTINS:
                self.refuse(node, f"{name} is given a new meaning", f"{name} has Python's meaning in kernel text", "choose another name")
            if name == "args" and not isinstance(node, ast.arg):
                self.refuse(node, "args is given a new meaning", "args stands for the kernel's arguments", "choose another name")
            if CONSTANT.fullmatch(name):
                self.refuse(node, f"{name} is given a new meaning", "a name in capitals is a spec constant", "choose a name in lower case")
        for node, name in own:
            if name in self.static and name in stored_names(tree, static=False):
                why = "an unrolled index is a constant, and the JIT refuses a name that is a constant here and a variable there"
                self.refuse(node, f"{name} is the index of a static_range loop and a variable", why, "give the index a name of its own")
        local = stored_names(tree, static=True) | stored_names(tree, static=False)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == "print":
                self.refuse(node, "`print`", "no target prints from a kernel the same way", "store what you want to see")
            if isinstance(node, ast.Name) and node.id in vars(builtins) and node.id not in BUILTINS | local | NAMES:
                known = ", ".join(sorted(BUILTINS))
                self.refuse(node, f"Python's `{node.id}`", "the JIT does not know it", f"use an operation of the dialect, or one of {known}")

    def arguments(self, tree: ast.FunctionDef) -> None:
        """`args` stands where the linker looks for it."""
        sites = {id((site.args if isinstance(site, ast.Call) else site.elts)[0]) for _, site in argument_sites(tree)}
        sites |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == "args" and id(node) not in sites:
                why = "the linker replaces it by the arguments that a callee uses"
                self.refuse(node, "args as a value", why, "write `args.name`, or pass args first to a device function")
        for node in tree.args.args[1:]:
            if node.arg == "args":
                self.refuse(node, "args is not the first parameter", "the linker and every caller expect it there", "make it the first")

    def lines(self, tree: ast.FunctionDef) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and self.text[node.lineno - 1][: node.col_offset].strip():
                self.refuse(node, "two statements on a line", "the linker removes and moves whole lines", "write one statement a line")

    def expressions(self, node: ast.AST, _: tuple[ast.stmt, ...]) -> None:
        if isinstance(node, ast.Attribute) and node.attr not in METHODS and not (isinstance(node.value, ast.Name) and node.value.id == "args"):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                self.refuse(node, "string formatting", *_FORMAT)
            known = ", ".join("." + m for m in sorted(METHODS))
            self.refuse(node, f"the attribute `.{node.attr}`", "not every target has it", f"use an operation of the dialect, or one of {known}")
        if isinstance(node, ast.Call):
            if not isinstance(node.func, (ast.Name, ast.Attribute)):
                self.refuse(node, "a call of something that has no name", "functions are found by name", "call a function or an operation by its name")
            if any(k.arg is None for k in node.keywords):
                self.refuse(node, "`**` unpacking", *_STAR)
        if isinstance(node, ast.Compare):
            if len(node.ops) > 1:
                self.refuse(node, "a chained comparison", "the JIT of Triton 3.6 compares two values at a time", "write `(a < b) & (b < c)`")
            if isinstance(node.ops[0], (ast.In, ast.NotIn)):
                self.refuse(node, "an `in` comparison", "the JIT cannot look into containers", "compare with each value and join the results with `|`")
            none = [x for x in (node.left, node.comparators[0]) if isinstance(x, ast.Constant) and x.value is None]
            if isinstance(node.ops[0], (ast.Is, ast.IsNot)) and not none:
                self.refuse(node, "an `is` comparison", "the JIT compares identities before compilation: always false", "use `==`; `is` is for None")
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.MatMult):
                self.refuse(node, "the operator `@`", "products are asynchronous here", "use `wgmma` and `wgmma_wait`")
            if isinstance(node.op, ast.Pow) and not is_static(node, self.static):
                self.refuse(node, "the operator `**`", "the JIT has no power of tiles or variables", "multiply, or use `exp2`")
        if isinstance(node, ast.Slice) and (node.lower or node.upper or node.step):
            self.refuse(node, "a slice with bounds", "tiles cannot be cut", "index tuples with numbers; `[:, None]` adds a dimension")

    def strings(self, node: ast.AST, _: tuple[ast.stmt, ...]) -> None:
        """Strings are docstrings and options of calls."""
        if isinstance(node, ast.Constant) and not isinstance(node.value, (int, float, str, type(None))):
            self.refuse(node, f"the constant `{ast.unparse(node)}`", "the JIT has integers, floats, booleans and None", "use one of these")
        for child in ast.iter_child_nodes(node):
            text = isinstance(child, ast.Constant) and isinstance(child.value, str)
            if text and isinstance(node, ast.BinOp):
                self.refuse(child, "string formatting", *_FORMAT)
            if text and not isinstance(node, (ast.Call, ast.keyword, ast.Expr)):
                self.refuse(child, f"the string {ast.unparse(child)} as a value", *_FORMAT)

    def assignments(self, node: ast.AST, _: tuple[ast.stmt, ...]) -> None:
        if isinstance(node, ast.AnnAssign):
            self.annotation(node.annotation)
            if node.value is None:
                self.refuse(node, "an annotation without a value", "it declares nothing in kernel text", "assign a value, or leave it out")
        if isinstance(node, ast.Assign) and len(node.targets) > 1:
            self.refuse(node, "several assignments in one statement", "the JIT assigns one target", "write one statement each")
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []
        for target in targets:
            if isinstance(target, (ast.Subscript, ast.Attribute)):
                why, instead = "values of the JIT cannot be changed in place", "make a new value; memory is written with `store` and `smem_store`"
                self.refuse(target, f"an assignment to `{ast.unparse(target)}`", why, instead)
            if isinstance(target, ast.List) or (isinstance(target, ast.Tuple) and not all(isinstance(e, ast.Name) for e in target.elts)):
                self.refuse(target, f"an assignment to `{ast.unparse(target)}`", "the JIT unpacks flat tuples into names", "unpack in several statements")

    def loops(self, node: ast.AST, inside: tuple[ast.stmt, ...]) -> None:
        if isinstance(node, (ast.For, ast.While)) and node.orelse:
            self.refuse(node.orelse[0], "`else` of a loop", "the JIT refuses it, and nothing leaves a loop early", "write the statements after the loop")
        if isinstance(node, ast.While) and is_static(node.test, self.static):
            why = "nothing leaves a loop early, so it would never end or never start"
            self.refuse(node, f"`while {ast.unparse(node.test)}`", why, "test something that the body changes")
        if isinstance(node, ast.Return) and any(_is_dynamic_loop(loop) for loop in inside):
            self.refuse(node, "`return` inside a loop", "the JIT has no jumps inside loops", "keep the result in a variable and return it after the loop")
        if isinstance(node, ast.For):
            call = node.iter
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("range", "static_range")):
                self.refuse(node, f"a loop over `{ast.unparse(call)}`", "the JIT loops over numbers", "use `range`, or `static_range` to unroll")
            if call.keywords or not 1 <= len(call.args) <= 3:
                instead = "write range(stop), range(start, stop) or range(start, stop, step)"
                self.refuse(node, f"the loop bounds `{ast.unparse(call)}`", "the JIT drops keywords of a range", instead)
            if not isinstance(node.target, ast.Name):
                self.refuse(node, "a loop with several variables", "a range gives one number", "use one name")
            variable = {n.id for a in call.args for n in ast.walk(a) if isinstance(n, ast.Name)} & self.variables(inside[0])
            if is_static_range(node) and variable:
                why = "the number of unrolled copies must be known before compilation"
                self.refuse(node, f"static_range over the variable {min(variable)}", why, "use `range`, or a spec constant")

    def variables(self, tree: ast.stmt) -> set[str]:
        """Names that hold variables: assigned in the function, and not as a constant or an unrolled index."""
        constants = {n.target.id for n in ast.walk(tree) if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
        parameters = {a.arg for a in tree.args.args}
        return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - self.static - constants - parameters

    def tuples(self, node: ast.AST, inside: tuple[ast.stmt, ...]) -> None:
        if isinstance(node, ast.IfExp) and isinstance(node.body, ast.Tuple) and not is_static(node.test, self.static):
            self.refuse(node, "a choice between tuples at run time", "the JIT chooses between single values", "choose each element")
        if isinstance(node, ast.BinOp) and any(isinstance(x, ast.Tuple) for x in (node.left, node.right)) and any(_is_dynamic_loop(loop) for loop in inside):
            self.refuse(node, "a tuple that grows in a loop", "its length would not be known before compilation", "use `static_range`")


def _is_dynamic_loop(node: ast.stmt) -> bool:
    return isinstance(node, (ast.For, ast.While)) and not is_static_range(node)


def _with_loops(tree: ast.FunctionDef) -> Iterator[tuple[ast.AST, tuple[ast.stmt, ...]]]:
    """Every node of the body in source order, with the function and the loops around it; the docstring is left out."""
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    pending: list[tuple[ast.AST, tuple[ast.stmt, ...]]] = [(n, (tree,)) for n in reversed(body)]
    while pending:
        node, inside = pending.pop()
        yield node, inside
        within = (*inside, node) if isinstance(node, (ast.For, ast.While)) else inside
        pending += [(child, within) for child in reversed(list(ast.iter_child_nodes(node)))]
