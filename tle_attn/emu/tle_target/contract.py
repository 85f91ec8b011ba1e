"""Static check of a TLE module: every name it takes from Triton or FlagTree is documented and called with legal arguments."""

from __future__ import annotations

import ast

from tle_attn.emu.tle_target.api import PACKAGES, Name, lookup, modules
from tle_attn.emu.tle_target.errors import TLEContractError


def check_contract(text: str) -> None:
    """Check the source text of a TLE module against the documented interface.

    Checked: imports, attributes of ``tl``, ``tle``, ``tle.gpu`` and ``tle_raw``, and for each call (through a module-level
    alias too) the number of positional arguments, the keyword names and the missing arguments.

    Raises:
        TLEContractError: lists every finding with its line.
    """
    walker = _Walker()
    walker.visit(ast.parse(text))
    if walker.findings:
        listed = "\n".join(f"  line {line}: {what}" for line, what in sorted(walker.findings))
        raise TLEContractError(f"the module leaves FlagTree's documented interface:\n{listed}")


def _root(path: str) -> bool:
    return path == "triton" or path.startswith("triton.")


class _Walker(ast.NodeVisitor):
    """Resolves dotted names to paths of the table; locals of a function hide the names of the module."""

    def __init__(self) -> None:
        self.findings: set[tuple[int, str]] = set()
        self.bound: dict[str, str] = {}  # name in the module -> documented path
        self.hidden: list[frozenset[str]] = []

    # ---- names
    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if _root(alias.name):
                self._module(node, alias.name)
                self.bound[alias.asname or "triton"] = alias.name if alias.asname else "triton"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and _root(node.module):
            self._module(node, node.module)
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                self._documented(node, path)
                self.bound[alias.asname or alias.name] = path

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        path = self._path(node.value)
        if not self.hidden and path is not None:
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.bound[target.id] = path

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for outside in [*node.decorator_list, *node.args.defaults, *(a.annotation for a in node.args.args if a.annotation)]:
            self.visit(outside)
        stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.hidden.append(frozenset(stored | {a.arg for a in node.args.args}))
        for statement in node.body:
            self.visit(statement)
        self.hidden.pop()

    def _path(self, node: ast.AST) -> str | None:
        """The documented path that a Name or a chain of attributes stands for, if its root is a bound module name."""
        if isinstance(node, ast.Name):
            return None if any(node.id in names for names in self.hidden) else self.bound.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self._path(node.value)
            return f"{base}.{node.attr}" if base is not None else None
        return None

    # ---- findings
    def _find(self, node: ast.stmt | ast.expr, what: str) -> None:
        self.findings.add((node.lineno, what))

    def _module(self, node: ast.stmt, path: str) -> None:
        if path not in modules():
            self._find(node, f"module {path} is not documented")

    def _documented(self, node: ast.stmt | ast.expr, path: str) -> Name | None:
        if path in modules():
            return None
        try:
            return lookup(path)
        except KeyError as error:
            self._find(node, str(error.args[0]))
            return None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None:
            self.visit(node.value)
            return
        base = path.rpartition(".")[0]
        if base in modules() or base in PACKAGES:  # members of values (tl.float32.primitive_bitwidth) are not in the table
            self._documented(node, path)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        path = self._path(node.func)
        if path is None or path.rpartition(".")[0] not in modules():
            return
        row = self._documented(node, path)
        if row is None:
            return
        if not row.callable:
            self._find(node, f"{path} is not callable")
        elif any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            self._find(node, f"{path}: unpacked arguments cannot be checked, and the JIT refuses them")
        else:
            what = row.complaint(len(node.args), tuple(k.arg for k in node.keywords if k.arg is not None))
            if what:
                self._find(node, f"{path} {what}")
