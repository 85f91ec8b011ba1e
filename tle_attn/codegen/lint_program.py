"""Lint across functions: what the JIT refuses or miscompiles in calls between the device functions of a kernel."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from .flow import CONSTANT, bound_parameters, bounds_only_carries, is_static, is_static_range, static_loop_names, stores
from .lint import refuse
from .source import Text


@lru_cache(maxsize=64)
def lint_program(texts: tuple[Text, ...]) -> None:
    """Refuse calls between `texts` (each already through `lint`) that the JIT refuses or miscompiles.

    Raises:
        LintError: recursion; keyword arguments, or too few or too many; a loop bound that Triton 3.6 loses through a call; a constant passed for a
            parameter that the callee changes in a loop or under `if`; a result unpacked into the wrong number of names.
    """
    functions = {text.name: text for text in texts}
    trees = {name: text.tree() for name, text in functions.items()}
    order = _callees_first(functions, trees)
    bounds: dict[str, frozenset[int]] = {}
    for name in order:
        for node, what, why, instead in bounds_only_carries(trees[name], bounds):
            _refuse(functions[name], node, what, why, instead)
        bounds[name] = bound_parameters(trees[name], bounds)
    for name in order:
        for node in ast.walk(trees[name]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in trees:
                for keyword in node.keywords:
                    why = "the linker and the JIT match the arguments of device functions by position"
                    _refuse(functions[name], keyword.value, f"the keyword {keyword.arg} in a call of {node.func.id}", why, "pass it by position")
                _check_count(functions[name], node, trees[node.func.id])
                _check_constants(functions[name], node, trees[node.func.id])
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                _check_unpacking(functions[name], node, trees)


def _refuse(text: Text, node: ast.AST, what: str, why: str, instead: str) -> None:
    refuse(text.file, text.line + node.lineno - 1, what, why, instead)


def _callees_first(functions: Mapping[str, Text], trees: Mapping[str, ast.FunctionDef]) -> list[str]:
    """Names of the functions so that each comes after those it calls."""
    order: list[str] = []
    path: list[str] = []

    def visit(name: str) -> None:
        if name in path:
            chain = " -> ".join([*path[path.index(name) :], name])
            _refuse(functions[name], trees[name], f"recursion: {chain}", "the JIT writes every call out in place", "use a loop")
        if name not in order:
            path.append(name)
            for node in ast.walk(trees[name]):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in trees:
                    visit(node.func.id)
            path.pop()
            order.append(name)

    for name in trees:
        visit(name)
    return order


def _check_count(text: Text, call: ast.Call, callee: ast.FunctionDef) -> None:
    parameters = [a.arg for a in callee.args.args]
    if len(call.args) != len(parameters):
        what = f"{len(call.args)} values are passed to {callee.name}, which takes {len(parameters)}: {', '.join(parameters)}"
        _refuse(text, call, what, "the linker and the JIT match the arguments of device functions by position", "pass one value for each parameter")


def _check_constants(text: Text, call: ast.Call, callee: ast.FunctionDef) -> None:
    parameters = [a.arg for a in callee.args.args]
    for parameter, value in zip(parameters, call.args):
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        constant = all(CONSTANT.fullmatch(n) for n in names) and not any(isinstance(n, ast.Call) for n in ast.walk(value))
        if constant and parameter in _changed_in_blocks(callee):
            _refuse(
                text, call, f"the constant {ast.unparse(value)} is passed for {parameter}, which {callee.name} changes in a loop or under `if`",
                "the JIT passes constants as constants, and these cannot become variables there", f"let {callee.name} copy it into a name of its own first",
            )  # fmt: skip


def _changed_in_blocks(tree: ast.FunctionDef) -> set[str]:
    """Names that a loop or an `if` assigns, unless the function assigned them before as a variable of its own."""
    changed: set[str] = set()
    own: set[str] = set()

    def block(statements: list[ast.stmt], inside: bool) -> None:
        for node in statements:
            if isinstance(node, (ast.While, ast.For, ast.If)):
                unrolled = is_static(node.test, static) if isinstance(node, ast.If) else is_static_range(node)
                block(node.body, inside or not unrolled)
                block(node.orelse, inside or not unrolled)
            elif inside:
                changed.update(stores(node) - own)
            else:
                own.update(stores(node))

    static = static_loop_names(tree)
    block(tree.body, False)
    return changed


def _check_unpacking(text: Text, node: ast.Assign, trees: Mapping[str, ast.FunctionDef]) -> None:
    call = node.value
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in trees):
        return
    results = [r.value for r in ast.walk(trees[call.func.id]) if isinstance(r, ast.Return)]
    for result in results:
        if isinstance(result, ast.Tuple) and len(result.elts) != len(node.targets[0].elts):
            _refuse(
                text, node, f"{call.func.id} returns {len(result.elts)} values, and {len(node.targets[0].elts)} names take them",
                "the JIT drops values that have no name, without a word", "name every value",
            )  # fmt: skip
