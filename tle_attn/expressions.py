"""What score and mask expressions have in common: a block whose device text comes from its option `value`."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

from attrs import field, frozen

from .codegen.expression import FLOAT, INT, Expression, Typed, text_of_function
from .errors import SpecError
from .spec import Block, Problem

#: what an expression sees: s in natural units, positions of key and query, the query head
INPUTS = {"s": ("logit", FLOAT), "key": ("key", INT), "query": ("query", INT), "head": ("head", INT)}
LN2 = 0.6931471805599453


class Numbers(dict):
    """Names with numbers, not to be changed: a part of a spec, which must have a hash."""

    def __init__(self, numbers: Any = ()):
        if not isinstance(numbers, dict):
            raise SpecError("numbers are names with values", key="numbers", value=numbers, allowed="{ name = number, ... }")
        super().__init__(sorted(numbers.items()))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def _positions(node: ast.AST) -> Iterator[str]:
    """Positions that a statement names outside of a difference of the two."""
    if isinstance(node, ast.Name) and node.id in ("key", "query"):
        yield node.id
    elif not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and {ast.unparse(node.left), ast.unparse(node.right)} == {"key", "query"}):
        for child in ast.iter_child_nodes(node):
            yield from _positions(child)


@frozen(kw_only=True)
class ExpressionBlock(Block):
    """Base of the two; a subclass says what kind the value has and how the link ends.

    Attributes:
        value: an expression of s (natural units), key, query, head and `numbers`, in Python's syntax; lines before it may give names to parts of it.
            `//` and `%` are meant for operands that are not negative: the device rounds towards zero.
        numbers: constants of the expression.
    """

    CHAIN: ClassVar[str] = ""
    REPEATS: ClassVar[bool] = True

    value: str
    numbers: dict[str, Any] = field(factory=dict, converter=Numbers)

    @classmethod
    def from_function(cls, function: Callable, **numbers: float) -> Self:
        """The block of a Python function `def f(s, key, query, head): ...` of assignments and one `return`; parameters that it does not use may be left out."""
        return cls(value=text_of_function(function), numbers=numbers)

    @property
    def expression(self) -> Expression:
        return Expression(self.value, INPUTS, self.numbers)

    @property
    def function(self) -> str:
        """Name of the device function: two expressions of a kernel have two."""
        return f"{self.CHAIN}_{hashlib.sha256(repr((self.value, dict(self.numbers))).encode()).hexdigest()[:8]}"

    @property
    def RELATIVE(self) -> bool:
        """Positions occur in differences of query and key alone."""
        return not any(name for statement in self.expression.statements() for name in _positions(statement))

    @property
    def HOOKS(self) -> dict[str, str]:  # type: ignore[override]
        return {self.CHAIN: self.function}

    def check(self, problem: Problem) -> None:
        self.end(self.expression.translate()[1])
        used = {node.id for statement in self.expression.statements() for node in ast.walk(statement) if isinstance(node, ast.Name)}
        if unused := sorted(set(self.numbers) - used):
            raise SpecError(f"the expression does not use {', '.join(unused)}", key="numbers", value=dict(self.numbers), allowed="names in `value`", reason="it would change nothing")

    def end(self, result: Typed) -> str:
        """What the link returns, in base-2 units, for this value of the expression; SpecError where it is no such value."""
        raise NotImplementedError

    def device_text(self) -> tuple[str, str]:
        assignments, result, inputs = self.expression.translate()
        body = [*([f"logit = s * {LN2!r}"] if "s" in inputs else []), *assignments, f"return {self.end(result)}"]
        quoted = ascii(" ".join(self.value.split()))[1:-1].replace("\\", "/").replace('"', "'")
        lines = ["@jit", f"def {self.function}(args, {', '.join(INPUTS)}):", f'    """{quoted}"""', *(f"    {line}" for line in body)]
        return "\n".join(lines) + "\n", f"<{self.label()}>"

    def evaluate(self, **values: Any) -> Any:
        """The expression's value in float64, for the oracle: it is its own definition."""
        return self.expression.evaluate(values)
