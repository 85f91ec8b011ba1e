"""Elementwise expressions of a user, in Python's syntax: checked, translated into the dialect, and evaluated in torch as their own definition.

    where(key // 1024 == query // 1024, s, s - penalty)

A text is an expression, or assignments of names on lines before one.  Values are booleans, integers or floating-point numbers, each element by itself; what is not
elementwise has no meaning here and is refused with a reason.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from attrs import field, frozen

from ..dialect.table import NAMES
from ..errors import SpecError
from .lint import BUILTINS

#: kinds of values, each contained in the next but for booleans
BOOL, INT, FLOAT = "boolean", "integer", "float"

LOG2E = math.log2(math.e)

#: function: (kinds of its arguments, what it becomes in the dialect); {0} is an argument's text, "number" any of the two
FUNCTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "where": ((BOOL, "number", "number"), "where({0}, {1}, {2})"),
    "min": (("number", "number"), "minimum({0}, {1})"),
    "max": (("number", "number"), "maximum({0}, {1})"),
    "abs": (("number",), "absolute({0})"),
    "float": (("number",), "{0}"),
    "exp": ((FLOAT,), f"exp2({{0}} * {LOG2E!r})"),
    "exp2": ((FLOAT,), "exp2({0})"),
    "log": ((FLOAT,), f"(lg2({{0}}) * {1 / LOG2E!r})"),
    "log2": ((FLOAT,), "lg2({0})"),
    "tanh": ((FLOAT,), f"(1.0 - 2.0 * rcp(1.0 + exp2({{0}} * {2 * LOG2E!r})))"),
    "sigmoid": ((FLOAT,), f"rcp(1.0 + exp2({{0}} * {-LOG2E!r}))"),
}
_FLOAT_RESULT = frozenset(FUNCTIONS) - {"where", "min", "max", "abs"}

_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_WHOLE = {ast.FloorDiv: "//", ast.Mod: "%"}
_BITS = {ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^"}
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


@frozen
class Typed:
    """A translated value: its text, kind, and the inputs that it depends on."""

    text: str
    kind: str
    inputs: frozenset[str] = frozenset()
    literal: bool = False  #: a number that is known now

    @property
    def as_float(self) -> str:
        if self.kind == FLOAT:
            return self.text
        return repr(float(ast.literal_eval(self.text))) if self.literal else f"{self.text}.to(F32)"


@frozen
class Expression:
    """A checked text over named inputs.

    Attributes:
        text: as the user wrote it.
        inputs: {name: (its name in the translation, kind)}.
        constants: {name: number}.
        option: recipe key of the text, for errors.
    """

    text: str
    inputs: Mapping[str, tuple[str, str]] = field(hash=False)
    constants: Mapping[str, Any] = field(hash=False)
    option: str = "value"

    def statements(self) -> list[ast.stmt]:
        try:
            found = ast.parse(textwrap.dedent(self.text).strip()).body
        except SyntaxError as error:
            raise SpecError(f"not an expression: {error.msg}", key=self.option, value=self.text) from None
        if not found or not isinstance(found[-1], ast.Expr):
            raise SpecError("the last line is no expression", key=self.option, value=self.text, allowed="an expression, or assignments of names and then an expression")
        return found

    def translate(self) -> tuple[list[str], Typed, frozenset[str]]:
        """(assignments in the dialect, the result, inputs that any of them reads).

        Raises:
            SpecError: something that is not elementwise, an unknown name, or kinds that do not fit.
        """
        translator = _Translator(self)
        lines = [line for node in self.statements()[:-1] if (line := translator.assignment(node))]
        result = translator.value(self.statements()[-1].value)
        return lines, result, result.inputs.union(*(v.inputs for name, v in translator.known.items() if name not in self.inputs))

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The result for torch tensors (or numbers) by name."""
        known = {**self.constants, **values}
        *assignments, last = self.statements()
        for node in assignments:
            known[node.targets[0].id] = _evaluate(node.value, known)
        return _evaluate(last.value, known)


class _Translator:
    """Translates the nodes of one expression, with the kinds of the names that it has assigned so far."""

    def __init__(self, expression: Expression):
        self.expression = expression
        self.known = {name: Typed(text, kind, frozenset({name})) for name, (text, kind) in expression.inputs.items()}
        self.taken = NAMES | BUILTINS | set(FUNCTIONS) | {"args", *expression.inputs, *(text for text, _ in expression.inputs.values())}
        for name, number in expression.constants.items():
            self.check_name(name)
            self.known[name] = self.number(number, name)

    def refuse(self, what: str, reason: str | None = None, allowed: Any = None) -> NoReturn:
        raise SpecError(what, key=self.expression.option, value=self.expression.text, allowed=allowed, reason=reason)

    def number(self, value: Any, what: str) -> Typed:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31:
            return Typed(repr(value), INT, literal=True)
        if isinstance(value, float) and math.isfinite(value):
            return Typed(repr(value), FLOAT, literal=True)
        self.refuse(f"{what} is {value!r}", allowed="a finite number, or an integer of 32 bits")

    def check_name(self, name: str) -> None:
        if name in self.taken or not name.isidentifier() or name.upper() == name:
            self.refuse(f"{name!r} cannot name a value", "it has a meaning already, or is written as spec constants are", "another name, in lower case")

    def assignment(self, node: ast.stmt) -> str | None:
        """The statement in the dialect; a name for a number known now needs none."""
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
            self.refuse(f"`{ast.unparse(node).splitlines()[0]}` is not elementwise", "every line gives one name a value", "NAME = EXPRESSION; a choice is `a if c else b`")
        name = node.targets[0].id
        self.check_name(name)
        if name in self.known:
            self.refuse(f"{name} is given a second value", "each name stands for one value", "another name")
        value = self.value(node.value)
        self.known[name] = value if value.literal else Typed(name, value.kind, value.inputs)
        return None if value.literal else f"{name} = {value.text}"

    def value(self, node: ast.expr) -> Typed:
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is None:
            self.refuse(f"`{ast.unparse(node)}` is not elementwise", "every element of the scores is computed from its own values", f"names, numbers, + - * / // %, comparisons, and, or, not, `a if c else b`, {', '.join(FUNCTIONS)}")
        value = method(node)
        if value.inputs or value.literal:
            return value
        known = {name: ast.literal_eval(v.text) for name, v in self.known.items() if v.literal}
        result = _evaluate(node, known)
        return self.number(getattr(result, "item", lambda: result)(), f"`{ast.unparse(node)}`")

    def want(self, node: ast.expr, kind: str, what: str) -> Typed:
        value = self.value(node)
        if (kind == BOOL) != (value.kind == BOOL):
            self.refuse(f"`{ast.unparse(node)}` is a {value.kind} where {what} wants a {'boolean' if kind == BOOL else 'number'}", allowed="a comparison" if kind == BOOL else "where(c, 1, 0)")
        if kind == INT and value.kind != INT:
            self.refuse(f"`{ast.unparse(node)}` is a {value.kind} where {what} wants an integer")
        return value

    # ---- nodes
    def _Name(self, node: ast.Name) -> Typed:
        if node.id not in self.known:
            inputs, constants = self.expression.inputs, self.expression.constants
            what = f"{node.id} is a function" if node.id in FUNCTIONS else f"nothing is called {node.id}"
            self.refuse(what, "the text sees what the block is given, its constants, and names that it has assigned", [*inputs, *constants])
        return self.known[node.id]

    def _Constant(self, node: ast.Constant) -> Typed:
        return self.number(node.value, ast.unparse(node))

    def _UnaryOp(self, node: ast.UnaryOp) -> Typed:
        if isinstance(node.op, (ast.Not, ast.Invert)):
            value = self.want(node.operand, BOOL, "`not`")
            return Typed(f"(({value.text}) == 0)", BOOL, value.inputs)
        value = self.want(node.operand, "number", "a sign")
        sign = "-" if isinstance(node.op, ast.USub) else ""
        return Typed(f"{sign}{value.text}" if value.literal else f"({sign}{value.text})", value.kind, value.inputs, value.literal)

    def _BinOp(self, node: ast.BinOp) -> Typed:
        kind = type(node.op)
        if kind in _BITS:
            left, right = (self.want(side, BOOL, f"`{_BITS[kind]}`") for side in (node.left, node.right))
            return Typed(f"({left.text} {_BITS[kind]} {right.text})", BOOL, left.inputs | right.inputs)
        if kind in _WHOLE:
            left, right = (self.want(side, INT, f"`{_WHOLE[kind]}`") for side in (node.left, node.right))
            self.check_divisor(node, right)
            return Typed(f"({left.text} {_WHOLE[kind]} {right.text})", INT, left.inputs | right.inputs)
        if kind in _ARITHMETIC:
            left, right, of = self.alike(node.left, node.right, f"`{_ARITHMETIC[kind]}`")
            return Typed(f"({left} {_ARITHMETIC[kind]} {right})", *of)
        if kind is ast.Div:
            x, y = (self.want(side, "number", "`/`") for side in (node.left, node.right))
            self.check_divisor(node, y)
            return Typed(f"fdiv({x.as_float}, {y.as_float})", FLOAT, x.inputs | y.inputs)
        self.refuse(f"`{ast.unparse(node)}` has no meaning on the device", "there is no such operation of tiles", "+ - * / // % & | ^")

    def check_divisor(self, node: ast.BinOp, divisor: Typed) -> None:
        if divisor.literal and not ast.literal_eval(divisor.text):
            self.refuse(f"`{ast.unparse(node)}` divides by zero", allowed="a divisor that is not 0")

    def alike(self, a: ast.expr, b: ast.expr, what: str) -> tuple[str, str, tuple[str, frozenset[str]]]:
        """(text, text, (kind, inputs)) of two numbers, both floats if one is."""
        left, right = self.want(a, "number", what), self.want(b, "number", what)
        inputs = left.inputs | right.inputs
        if FLOAT in (left.kind, right.kind):
            return left.as_float, right.as_float, (FLOAT, inputs)
        return left.text, right.text, (INT, inputs)

    def _BoolOp(self, node: ast.BoolOp) -> Typed:
        sign = " & " if isinstance(node.op, ast.And) else " | "
        values = [self.want(v, BOOL, "`and`" if sign == " & " else "`or`") for v in node.values]
        return Typed(f"({sign.join(v.text for v in values)})", BOOL, frozenset().union(*(v.inputs for v in values)))

    def _Compare(self, node: ast.Compare) -> Typed:
        sides = [node.left, *node.comparators]
        parts: list[str] = []
        inputs: frozenset[str] = frozenset()
        for op, a, b in zip(node.ops, sides, sides[1:]):
            if type(op) not in _COMPARE:
                self.refuse(f"`{ast.unparse(node)}` has no meaning on the device", "tiles are compared element by element", " ".join(_COMPARE.values()))
            left, right, (_, found) = self.alike(a, b, "a comparison")
            parts.append(f"({left} {_COMPARE[type(op)]} {right})")
            inputs |= found
        return Typed(parts[0] if len(parts) == 1 else f"({' & '.join(parts)})", BOOL, inputs)

    def _IfExp(self, node: ast.IfExp) -> Typed:
        return self.call("where", [node.test, node.body, node.orelse])

    def _Call(self, node: ast.Call) -> Typed:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            self.refuse(f"`{ast.unparse(node.func)}` is no function of an expression", "others are not elementwise, or not on the device", FUNCTIONS)
        kinds, _ = FUNCTIONS[node.func.id]
        if len(node.args) != len(kinds) or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            self.refuse(f"`{ast.unparse(node)}`: {node.func.id} takes {len(kinds)} values")
        return self.call(node.func.id, node.args)

    def call(self, name: str, arguments: list[ast.expr]) -> Typed:
        kinds, template = FUNCTIONS[name]
        values = [self.want(a, kind, name) for a, kind in zip(arguments, kinds)]
        numbers = [v for v, kind in zip(values, kinds) if kind != BOOL]
        floats = name in _FLOAT_RESULT or any(v.kind == FLOAT for v in numbers)
        texts = [v.text if kind == BOOL or not floats else v.as_float for v, kind in zip(values, kinds)]
        return Typed(template.format(*texts), FLOAT if floats else INT, frozenset().union(*(v.inputs for v in values)))


def _evaluate(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of a checked node: Python's own arithmetic on float64 and int64 tensors."""
    import torch

    functions: dict[str, Callable] = {
        "where": lambda c, a, b: torch.where(torch.as_tensor(c), a, b),
        "min": lambda a, b: torch.minimum(*_tensors(a, b)), "max": lambda a, b: torch.maximum(*_tensors(a, b)), "abs": abs, "float": lambda x: torch.as_tensor(x).double(),
        **{name: lambda x, name=name: getattr(torch, name)(torch.as_tensor(x).double()) for name in ("exp", "exp2", "log", "log2", "tanh", "sigmoid")},
    }  # fmt: skip

    class Logic(ast.NodeTransformer):
        """Boolean operators of Python, which look at whole objects, as operators of elements."""

        def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
            self.generic_visit(node)
            made = node.values[0]
            for value in node.values[1:]:
                made = ast.BinOp(made, ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr(), value)
            return made

        def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
            self.generic_visit(node)
            return ast.BinOp(node.operand, ast.BitXor(), ast.Constant(True)) if isinstance(node.op, (ast.Not, ast.Invert)) else node

        def visit_Compare(self, node: ast.Compare) -> ast.expr:
            self.generic_visit(node)
            sides = [node.left, *node.comparators]
            pairs = [ast.Compare(a, [op], [b]) for op, a, b in zip(node.ops, sides, sides[1:])]
            return self.visit_BoolOp(ast.BoolOp(ast.And(), pairs)) if len(pairs) > 1 else node

        def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
            self.generic_visit(node)
            return ast.Call(ast.Name("where", ast.Load()), [node.test, node.body, node.orelse], [])

    tree = ast.fix_missing_locations(ast.Expression(Logic().visit(ast.parse(ast.unparse(node), mode="eval").body)))
    return eval(compile(tree, "<expression>", "eval"), {"__builtins__": {}}, {**functions, **known})


def _tensors(a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands as tensors of one type."""
    import torch

    return torch.as_tensor(a) + 0 * torch.as_tensor(b), torch.as_tensor(b) + 0 * torch.as_tensor(a)


def text_of_function(function: Callable) -> str:
    """The text of a Python function of assignments and one `return`: what an expression holds.

    Raises:
        SpecError: its source cannot be read, or it is more than that.
    """
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise SpecError(f"the source of {function!r} cannot be read: {error}", reason="a function is translated from its text; write it in a file") from None
    try:
        node = ast.parse(source).body[0]
    except SyntaxError:  # the line that a lambda stands in
        node = None
    if not isinstance(node, ast.FunctionDef):
        raise SpecError(f"{function!r} is no function defined with `def`", reason="a function is translated from its text")
    body = node.body[1:] if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant) else node.body
    if not body or not isinstance(body[-1], ast.Return) or body[-1].value is None:
        raise SpecError(f"{node.name} does not end with `return` and a value", key=node.name, allowed="assignments of names, then `return EXPRESSION`")
    return "\n".join([*(ast.unparse(n) for n in body[:-1]), ast.unparse(body[-1].value)])
