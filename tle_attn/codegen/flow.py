"""Data flow in a device function: which names are constants, what is read before it is assigned, and which loop bounds Triton 3.6 loses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from ..dialect.table import NAMES

#: (node, what, why, instead)
Finding = tuple[ast.AST, str, str, str]
#: names of spec constants
CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")
_STATIC_CALLS = frozenset({"len", "min", "max", "int", "float", "isinstance"})


def static_loop_names(tree: ast.AST) -> frozenset[str]:
    """Indices of static_range loops: constants of the unrolled text."""
    return frozenset(n.target.id for n in ast.walk(tree) if is_static_range(n) and isinstance(n.target, ast.Name))


def stored_names(tree: ast.FunctionDef, *, static: bool) -> set[str]:
    """Indices of static_range loops (`static`), or parameters and every other name that the function assigns."""
    targets = {id(n.target) for n in ast.walk(tree) if is_static_range(n)}
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and (id(n) in targets) == static}
    return names if static else names | {a.arg for a in tree.args.args}


def is_static(node: ast.expr, static: frozenset[str]) -> bool:
    """Is its value known before compilation: made of literals, spec constants, names in `static` and comparisons with None?"""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return True
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _STATIC_CALLS and all(is_static(a, static) for a in node.args)
    if isinstance(node, ast.Name):
        return node.id in static or node.id in NAMES or bool(CONSTANT.fullmatch(node.id))
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return False
    return all(is_static(child, static) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def is_static_range(loop: ast.stmt) -> bool:
    """A loop that is unrolled before compilation."""
    return isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name) and loop.iter.func.id == "static_range"


def stores(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


# ---- assigned before read


def reads_before_assignment(tree: ast.FunctionDef) -> Iterator[Finding]:
    """Reads of local names that have no value on some path: names of a loop's body or of one branch, and loop variables after their loop."""
    yield from _Assigned(tree).findings


class _Assigned:
    """Walks a function with the set of names that have a value; None stands for "never gets here"."""

    def __init__(self, tree: ast.FunctionDef):
        self.local = stored_names(tree, static=True) | stored_names(tree, static=False)
        self.static = static_loop_names(tree)
        self.loop_variables: set[str] = set()
        self.findings: list[Finding] = []
        self.block(tree.body, {a.arg for a in tree.args.args})

    def read(self, node: ast.AST | None, known: set[str]) -> None:
        for name in ast.walk(node) if node is not None else ():
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and name.id in self.local and name.id not in known:
                if name.id in self.loop_variables:
                    what, why = f"the loop variable {name.id} is read after its loop", "the JIT leaves it undefined there, without a word"
                else:
                    what, why = f"{name.id} is read where it may have no value", "the JIT forgets what only a loop's body or one branch assigned"
                self.findings.append((name, what, why, f"give {name.id} a value before, on every path"))

    def block(self, statements: list[ast.stmt], known: set[str] | None) -> set[str] | None:
        for statement in statements:
            if known is None:
                return None
            known = self.statement(statement, known)
        return known

    def statement(self, node: ast.stmt, known: set[str]) -> set[str] | None:
        if isinstance(node, ast.If):
            self.read(node.test, known)
            branches = [b for b in (self.block(node.body, set(known)), self.block(node.orelse, set(known))) if b is not None]
            if not branches:
                return None
            return set.union(*branches) if is_static(node.test, self.static) else set.intersection(*branches)
        if isinstance(node, ast.For):
            self.read(node.iter, known)
            if is_static_range(node):
                return self.block(node.body, known | {node.target.id})
            self.block(node.body, known | {node.target.id})
            self.loop_variables.add(node.target.id)
            return known - {node.target.id}
        if isinstance(node, ast.While):
            self.read(node.test, known)
            self.block(node.body, set(known))
            return known
        if isinstance(node, ast.Return):
            self.read(node.value, known)
            return None
        if isinstance(node, ast.AugAssign):
            self.read(ast.Name(node.target.id, ast.Load(), lineno=node.lineno), known)
        self.read(node, known)
        return known | stores(node)


# ---- loop bounds


def bounds_only_carries(tree: ast.FunctionDef, bound_parameters: Mapping[str, frozenset[int]]) -> Iterator[Finding]:
    """Values that an outer `for` carries and that serve only as bounds of an inner `range`.

    Triton 3.6 takes such a value for dead and keeps its first one (fixed in 3.9).  `bound_parameters`: {device function: positions of parameters that it uses
    as bounds only}.
    """
    if not any(_has_inner_bounds(loop, bound_parameters) for loop in ast.walk(tree)):
        return
    for loop, later in _loops_with_later_reads(tree.body, frozenset()):
        carried = stores(ast.Module(loop.body, []))
        flow = _Bounds({name: frozenset({name}) for name in carried}, bound_parameters)
        flow.block(loop.body)
        flow.alive |= frozenset().union(*(flow.values[name] | {name} for name in carried & later))
        for name in sorted(flow.lost()):
            yield (
                loop, f"this loop changes {name}, which only bounds an inner loop", "Triton 3.6 keeps the first value of such a bound",
                f"compute {name} anew inside the outer loop's body, or make the inner loop a `while`",
            )  # fmt: skip


def _has_inner_bounds(node: ast.AST, bound_parameters: Mapping[str, frozenset[int]]) -> bool:
    """A `for` over a `range` with another one inside, or with a call that takes a bound."""
    if not isinstance(node, ast.For) or is_static_range(node):
        return False
    inner = [n for n in ast.walk(node) if n is not node]
    calls = {n.func.id for n in inner if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    return any(isinstance(n, ast.For) and not is_static_range(n) for n in inner) or any(bound_parameters.get(name) for name in calls)


def _loops_with_later_reads(statements: list[ast.stmt], later: frozenset[str]) -> Iterator[tuple[ast.For, frozenset[str]]]:
    """Every `for` over a `range`, with the names whose values after it are read; `later`: names that are read after `statements`."""
    for i, node in enumerate(statements):
        after = frozenset(_first_reads(statements[i + 1 :])) | later
        inside = after | _first_reads(node.body) if isinstance(node, (ast.For, ast.While)) else after
        if isinstance(node, ast.For) and not is_static_range(node):
            yield node, after
        for block in (getattr(node, "body", []), getattr(node, "orelse", [])):
            yield from _loops_with_later_reads(block, inside)


def _first_reads(statements: list[ast.stmt]) -> set[str]:
    """Names that a block reads before it surely assigns them."""
    found: set[str] = set()
    assigned: set[str] = set()
    for node in statements:
        if isinstance(node, (ast.For, ast.While, ast.If)):
            head = node.iter if isinstance(node, ast.For) else node.test
            found |= (_loads(head) | _first_reads(node.body) | _first_reads(node.orelse)) - assigned
        else:
            own = {node.target.id} if isinstance(node, ast.AugAssign) else set()
            found |= (_loads(node) | own) - assigned
            assigned |= stores(node)
    return found


def _loads(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def bound_parameters(tree: ast.FunctionDef, known: Mapping[str, frozenset[int]]) -> frozenset[int]:
    """Positions of the parameters that a function uses as bounds of its own loops only."""
    names = [a.arg for a in tree.args.args]
    flow = _Bounds({name: frozenset({name}) for name in names}, known)
    flow.block(tree.body)
    return frozenset(i for i, name in enumerate(names) if name in flow.lost())


class _Bounds:
    """Follows where the first values of some names go: into loop bounds, or into anything that keeps them alive.

    Attributes:
        values: {name: sources that its value depends on}.
        bounds: sources that reach a bound of a `range`.
        alive: sources that reach a call, a test or a result.
    """

    def __init__(self, values: dict[str, frozenset[str]], bound_parameters: Mapping[str, frozenset[int]]):
        self.values, self.known = dict(values), bound_parameters
        self.sources = frozenset(values)
        self.bounds: set[str] = set()
        self.alive: set[str] = set()

    def lost(self) -> set[str]:
        """Sources that reach bounds alone; what a living name becomes in the next iteration is alive too."""
        alive = set(self.alive)
        while more := {s for name in alive for s in self.values.get(name, ())} & self.sources - alive:
            alive |= more
        return self.bounds - alive

    def sources_of(self, node: ast.AST | None) -> frozenset[str]:
        """What an expression depends on; arguments that a callee uses as bounds only are noted as such."""
        if node is None:
            return frozenset()
        if isinstance(node, ast.Name):
            return self.values.get(node.id, frozenset())
        found: set[str] = set()
        bound = self.known.get(node.func.id, frozenset()) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else frozenset()
        for child in ast.iter_child_nodes(node):
            sources = self.sources_of(child)
            if isinstance(node, ast.Call) and any(child is node.args[i] for i in bound if i < len(node.args)):
                self.bounds |= sources
            else:
                found |= sources
        return frozenset(found)

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def branches(self, *blocks: list[ast.stmt]) -> None:
        """Exactly one of the blocks runs."""
        before = self.values
        after: dict[str, frozenset[str]] = {}
        for block in blocks:
            self.values = dict(before)
            self.block(block)
            for name, sources in self.values.items():
                after[name] = after.get(name, frozenset()) | sources
        self.values = after

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            parallel = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts)
            pairs = list(zip(target.elts, map(self.sources_of, node.value.elts))) if parallel else [(target, self.sources_of(node.value))]
            for names, sources in pairs:
                self.values.update(dict.fromkeys(stores(names), sources))
        elif isinstance(node, ast.AugAssign):
            self.values[node.target.id] = self.values.get(node.target.id, frozenset()) | self.sources_of(node.value)
        elif isinstance(node, ast.If):
            self.alive |= self.sources_of(node.test)
            self.branches(node.body, node.orelse)
        elif isinstance(node, (ast.For, ast.While)):
            before: dict[str, frozenset[str]] | None = None
            while before != self.values:  # until nothing more goes from one iteration into the next
                before = dict(self.values)
                if isinstance(node, ast.While):
                    self.alive |= self.sources_of(node.test)
                else:
                    if not is_static_range(node):
                        self.bounds |= frozenset().union(*map(self.sources_of, node.iter.args))
                    self.values[node.target.id] = frozenset()
                self.branches(node.body, [])
        else:
            self.alive |= frozenset().union(*map(self.sources_of, ast.iter_child_nodes(node)))
