"""Prelude: the dialect functions that a kernel uses, written out for a target."""

from __future__ import annotations

import ast
import sys
from functools import lru_cache
from pathlib import Path

DIALECT = Path(__file__).resolve().parent.parent / "dialect"
TARGETS = ("gluon", "tle", "cpu")
#: sources of each target's dialect, in order
PARTS = {"gluon": ("gluon/core", "gluon/tiles", "gluon/pipeline", "gluon/hook", "gluon/publish", "gluon/clusters"), "tle": ("tle",), "cpu": ("cpu",)}


def whole(target: str) -> str:
    """The whole dialect of a target as one source."""
    return "\n".join((DIALECT / f"{part}.py").read_text() for part in PARTS[target])


@lru_cache
def _parsed(target: str, micro: tuple[Path, ...]) -> tuple[str, ast.Module]:
    source = "\n".join([whole(target), *(f.read_text() for f in micro)])
    return source, ast.parse(source)


def defined_names(target: str, micro: tuple[Path, ...] = ()) -> set[str]:
    """Every name that a target's dialect file (and microkernel files) defines."""
    return {name for node in _parsed(target, micro)[1].body for name in _names(node)}


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return [node.targets[0].id]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return [node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []


def prelude(target: str, used: set[str], micro: tuple[Path, ...] = ()) -> str:
    """Source of the definitions that `used` names reach, in file order, with the imports they need."""
    source, tree = _parsed(target, micro)
    lines = source.splitlines()
    definitions = {name: node for node in tree.body for name in _names(node)}
    keep: set[str] = set()
    pending = sorted(used & set(definitions))
    while pending:
        name = pending.pop()
        if name not in keep:
            keep.add(name)
            pending += [n.id for n in ast.walk(definitions[name]) if isinstance(n, ast.Name) and n.id in definitions]
    needed: set[str] = set()
    parts: list[str] = []
    previous = ""
    for name, node in definitions.items():
        if name not in keep:
            continue
        needed |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        first = min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", [])])
        while first > 1 and lines[first - 2].startswith("#"):  # a comment right above belongs to it
            first -= 1
        kind = "assignment" if isinstance(node, (ast.Assign, ast.AnnAssign)) else "definition"
        gap = "" if not parts else "\n" if kind == previous == "assignment" else "\n\n\n"
        parts.append(gap + "\n".join(lines[first - 1 : node.end_lineno]))
        previous = kind
    return "\n".join(_imports(tree, needed)) + "\n\n" + "".join(parts)


def _imports(tree: ast.Module, needed: set[str]) -> list[str]:
    """Import lines for `needed` names, one a module, the standard library's first."""
    modules: dict[str, set[str]] = {}  # "" for plain imports
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", None) != "__future__":
            names = {ast.unparse(ast.Import([a])).removeprefix("import ") for a in node.names if (a.asname or a.name.split(".")[0]) in needed}
            modules.setdefault(getattr(node, "module", None) or "", set()).update(names)
    plain, froms = sorted(modules.pop("", set())), sorted(modules.items())
    lines = [(name.split(".")[0].split(" ")[0], f"import {name}") for name in plain]
    lines += [(module.split(".")[0], f"from {module} import {', '.join(sorted(names))}") for module, names in froms if names]
    standard = [text for root, text in lines if root in sys.stdlib_module_names]
    others = [text for root, text in lines if root not in sys.stdlib_module_names]
    return [*standard, *([""] if standard and others else []), *others]
