"""Block text: the device functions of a block's module, as source, and small edits on them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from ..errors import LinkError
from ..spec import Block

#: where blocks import device functions of other blocks from
LIBRARY = "tle_attn.components."


@lru_cache(maxsize=4096)
def parse(source: str) -> ast.Module:
    """The syntax tree of a text; not to be changed, since the same text is looked at many times."""
    return ast.parse(source)


@frozen
class Text:
    """One device function.

    Attributes:
        name: function name.
        owner: recipe key of the block it belongs to (``softmax``), or ``chain score``.
        source: decorated source, unindented.
        file, line: where it was written (line of the decorator).
    """

    name: str
    owner: str
    source: str
    file: str
    line: int

    def tree(self) -> ast.FunctionDef:
        return parse(self.source).body[0]

    def edited(self, source: str) -> Text:
        return evolve(self, source=source)


def is_device(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(isinstance(d, ast.Name) and d.id == "jit" for d in node.decorator_list)


def functions_of(file: Path, owner: str) -> list[Text]:
    """The ``@jit`` functions of a block module: those that it imports from other blocks by name, with what they call there, and its own in file order."""
    return _functions_in(file.read_text(), str(file), owner)


def texts_of(block: Block, owner: str) -> list[Text]:
    """The ``@jit`` functions of a block: those that its module imports from other blocks, and its own in the order they were written."""
    return _functions_in(*block.device_text(), owner)


def _functions_in(text: str, file: str, owner: str) -> list[Text]:
    lines = text.splitlines()
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(LIBRARY):
            names = {a.name for a in node.names if a.name.islower()}
            found += _with_callees(functions_of(Path(find_spec(node.module).origin), owner), names) if names else []
        elif is_device(node):
            first = node.decorator_list[0].lineno
            found.append(Text(node.name, owner, "\n".join(lines[first - 1 : node.end_lineno]), file, first))
    return found


def _with_callees(functions: list[Text], names: set[str]) -> list[Text]:
    """Those of a module's functions that are called `names`, and what they call of the module."""
    known = {t.name: t for t in functions}
    wanted, pending = set(), [n for n in names if n in known]
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending += [n for n in free_names(known[name].tree()) if n in known]
    return [t for t in functions if t.name in wanted]


def microkernel_file(block: type[Block], target: str) -> Path | None:
    """``<name>.<target>.py`` beside the block's module, if the block has one."""
    file = block.source_file()
    micro = file.with_name(f"{file.stem}.{target}.py")
    return micro if micro.exists() else None


@lru_cache(maxsize=4096)
def local_names(tree: ast.FunctionDef) -> frozenset[str]:
    """Parameters and every name that the function assigns."""
    return frozenset(a.arg for a in tree.args.args) | {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


@lru_cache(maxsize=4096)
def free_names(tree: ast.FunctionDef) -> frozenset[str]:
    """Names that the function reads from its module (its decorator and annotations included)."""
    local = local_names(tree)
    return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id not in local)


def is_empty(tree: ast.FunctionDef) -> bool:
    """Nothing but a docstring or pass."""
    return all(isinstance(n, ast.Pass) or (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)) for n in tree.body)


def is_idle(node: ast.AST) -> bool:
    """An `if` that does nothing either way, and whose test calls nothing."""
    if not isinstance(node, ast.If) or any(isinstance(n, ast.Call) for n in ast.walk(node.test)):
        return False
    return all(isinstance(n, ast.Pass) for n in [*node.body, *node.orelse])


def replace_spans(source: str, edits: list[tuple[int, int, int, int, str]]) -> str:
    """Replace (line, column, end line, end column) spans; lines from 1, columns in ASCII text; spans must not overlap.

    A span that is replaced by nothing takes the comma behind it along.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for line, col, end_line, end_col, new in sorted(edits, reverse=True):
        tail = source[starts[end_line - 1] + end_col :]
        source = source[: starts[line - 1] + col] + new + (tail if new else re.sub(r"^\s*,\s*", "", tail))
    return source


def remove_statements(source: str, nodes: list[ast.stmt]) -> str:
    """Delete whole statements; a body left empty gets `pass`.  The nodes belong to parse(source) and do not nest."""
    spans = {(n.lineno, n.end_lineno) for n in nodes}
    lines = source.splitlines()
    replace: dict[int, str] = {}
    for parent in ast.walk(parse(source)):
        for body in (getattr(parent, "body", None), getattr(parent, "orelse", None)):
            if isinstance(body, list) and body and all((n.lineno, n.end_lineno) in spans for n in body):
                replace[body[0].lineno] = " " * body[0].col_offset + "pass"
    gone = {i for first, last in spans for i in range(first, last + 1)}
    return "\n".join(replace.get(i, line) for i, line in enumerate(lines, 1) if i not in gone or i in replace)


def renamed(source: str, names: dict[str, str]) -> str:
    """Other names for free ones."""
    found = [n for n in ast.walk(parse(source)) if isinstance(n, ast.Name) and n.id in names]
    return replace_spans(source, [(n.lineno, n.col_offset, n.end_lineno, n.end_col_offset, names[n.id]) for n in found])


def replace_calls(source: str, names: set[str], position: int) -> str:
    """Calls of functions in `names` become the argument at `position`; an assignment of a name to itself that this leaves goes."""
    while True:
        parents = {child: node for node in ast.walk(parse(source)) for child in ast.iter_child_nodes(node)}
        call = next((n for n in parents if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in names), None)
        if call is None:
            return source
        value, parent = call.args[position], parents[call]
        if isinstance(parent, ast.Assign) and ast.unparse(parent.targets[0]) == ast.unparse(value):
            source = remove_statements(source, [parent])
            continue
        text = ast.get_source_segment(source, value)
        bare, safe = (replace_spans(source, [(call.lineno, call.col_offset, call.end_lineno, call.end_col_offset, t)]) for t in (text, f"({text})"))
        source = bare if ast.dump(parse(bare)) == ast.dump(parse(safe)) else safe


def _constant_value(node: ast.expr, constants: dict[str, Any]) -> Any:
    """Value of an expression of spec constants alone, or NotImplemented."""
    names = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    if not names or not names <= set(constants) or any(isinstance(x, (ast.Call, ast.Attribute)) for x in ast.walk(node)):
        return NotImplemented
    return eval(compile(ast.Expression(node), "<spec constant>", "eval"), {"__builtins__": {}}, dict(constants))


def prune(source: str, constants: dict[str, Any]) -> str:
    """Resolve `if` statements and conditional expressions whose test names spec constants only: nothing of an off feature stays in the text."""
    while True:
        lines = source.splitlines()
        for node in ast.walk(parse(source)):
            if isinstance(node, ast.IfExp) and (value := _constant_value(node.test, constants)) is not NotImplemented:
                keep = node.body if value else node.orelse
                source = replace_spans(source, [(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, ast.get_source_segment(source, keep))])
                break
            if isinstance(node, ast.If) and (value := _constant_value(node.test, constants)) is not NotImplemented:
                source = _keep_branch(source, lines, node, bool(value))
                break
        else:
            return source


def _keep_branch(source: str, lines: list[str], node: ast.If, value: bool) -> str:
    keep = node.body if value else node.orelse
    body: list[str] = []
    is_elif = _is_elif(lines[node.lineno - 1])
    if is_elif and not keep:
        return "\n".join(lines[: node.lineno - 1] + lines[node.end_lineno :])
    if keep:
        first = keep[0].lineno
        start = node.test.end_lineno if value else node.body[-1].end_lineno + 1
        while first - 1 > start and lines[first - 2].lstrip().startswith("#"):  # comments of the branch stay with it
            first -= 1
        chained = _is_elif(lines[keep[0].lineno - 1])
        indent = " " * (node.col_offset + (4 if is_elif and not chained else 0))
        body = textwrap.indent(textwrap.dedent("\n".join(lines[first - 1 : keep[-1].end_lineno])), indent).splitlines()
        if is_elif and not chained:  # what is kept stays under the tests before it
            body.insert(0, " " * node.col_offset + "else:")
        elif chained and not is_elif:
            body[0] = body[0].replace("elif", "if", 1)
        return "\n".join(lines[: node.lineno - 1] + body + lines[node.end_lineno :])
    return remove_statements(source, [node])


def _is_elif(line: str) -> bool:
    return line.lstrip().startswith("elif")


def _ends_with_comma(source: str, node: ast.Tuple) -> bool:
    return ast.get_source_segment(source, node).rstrip(" \n)").endswith(",")


@lru_cache(maxsize=4096)
def unused_parameters(tree: ast.FunctionDef) -> frozenset[int]:
    """Positions of parameters (but `args`) that the body does not read."""
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    used |= {n.target.id for n in ast.walk(tree) if isinstance(n, ast.AugAssign)}
    return frozenset(i for i, a in enumerate(tree.args.args) if a.arg != "args" and a.arg not in used)


def drop_parameters(source: str, name: str, unused: dict[str, frozenset[int]]) -> str:
    """The source of function `name` without the unused parameters of itself and of the functions that it calls or gives to roles."""

    def sites() -> list[tuple[ast.AST, list[ast.AST], frozenset[int]]]:
        found: list[tuple[ast.AST, list[ast.AST], frozenset[int]]] = []
        for node in ast.walk(parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                found.append((node, list(node.args.args), unused.get(name, frozenset())))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found.append((node, list(node.args), unused.get(node.func.id, frozenset())))
            elif isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.elts[0], ast.Name) and isinstance(node.elts[1], ast.Tuple):
                found.append((node.elts[1], list(node.elts[1].elts), unused.get(node.elts[0].id, frozenset())))
        return sorted((s for s in found if s[1] and s[2]), key=lambda s: (s[0].lineno, s[0].col_offset))

    for number in reversed(range(len(sites()))):  # from the last on: what is inside of a call starts after it, and is done before it
        node, items, gone = sites()[number]
        kept = [ast.get_source_segment(source, item) for i, item in enumerate(items) if i not in gone]
        lonely = isinstance(node, ast.Tuple) and len(kept) == 1 and not _ends_with_comma(source, node)
        text = ", ".join(kept) + ("," if lonely else "")  # one element must stay a tuple
        source = replace_spans(source, [(items[0].lineno, items[0].col_offset, items[-1].end_lineno, items[-1].end_col_offset, text)])
    return source


def argument_sites(tree: ast.AST) -> Iterator[tuple[str, ast.Call | ast.Tuple]]:
    """(callee, where its arguments are, `args` first) of f(args, ...) and of (f, (args, ...)) in a role list."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args and _is_args(node.args[0]):
            yield node.func.id, node
        if isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.elts[0], ast.Name):
            inner = node.elts[1]
            if isinstance(inner, ast.Tuple) and inner.elts and _is_args(inner.elts[0]):
                yield node.elts[0].id, inner


def _is_args(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "args"


def used_arguments(tree: ast.AST) -> set[str]:
    """NAME of every args.NAME."""
    return {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and _is_args(n.value)}


def flatten_arguments(text: Text, need: dict[str, list[str]]) -> Text:
    """Replace the pseudo parameter `args` by the kernel arguments that this function and its callees use.

    A local name that an argument has too gets an underscore: `slots` and `args.slots` stay two things.
    """
    tree = parse(text.source)
    edits = []
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    for name in sorted(local_names(tree.body[0]) & set(need[text.name])):
        new = name + "_"
        while new in names:
            new += "_"
        same = [n for n in ast.walk(tree) if (isinstance(n, ast.Name) and n.id == name) or (isinstance(n, ast.arg) and n.arg == name)]
        edits += [(n.lineno, n.col_offset, n.lineno, n.col_offset + len(name), new) for n in same]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_args(node.value):
            edits.append((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, node.attr))
        elif isinstance(node, ast.arg) and node.arg == "args":
            edits.append((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, ", ".join(need[text.name])))
    for callee, site in argument_sites(tree):
        arguments = site.args if isinstance(site, ast.Call) else site.elts
        node = arguments[0]
        if callee not in need:
            raise LinkError(f"{text.file}:{text.line + node.lineno - 1}: {text.name} passes args to {callee}, which is no device function of this kernel")
        edits.append((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, ", ".join(need[callee])))
        lonely = not need[callee] and isinstance(site, ast.Tuple) and len(arguments) == 2
        if lonely and not _ends_with_comma(text.source, site):  # one element must stay a tuple
            last = arguments[1]
            edits.append((last.end_lineno, last.end_col_offset, last.end_lineno, last.end_col_offset, ","))
    return text.edited(replace_spans(text.source, edits))


WIDTH = 140


def wrap(source: str) -> str:
    """Break lines that flattened arguments made too long, at commas inside brackets.  Strings and comments stay whole."""
    texts = [n for n in ast.walk(parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    keep = {i for n in texts if n.lineno != n.end_lineno for i in range(n.lineno, n.end_lineno + 1)}
    out: list[str] = []
    depth = 0  # brackets that are open where a line starts
    for number, line in enumerate(source.splitlines(), 1):
        code = "" if number in keep else _masked(line).split("#")[0].rstrip()
        if len(line) <= WIDTH or not code.strip() or line.lstrip().startswith('"'):
            out.append(line)
        else:
            if len(code) < len(line.rstrip()):  # a comment moves above its line
                out.append(_indent(line) + line[len(code) :].lstrip())
            line = line[: len(code)]
            pieces = _broken(line) if len(line) > WIDTH else [line]
            items = _items(line, 0, len(line))
            if pieces == [line] and depth > 0 and len(line) > WIDTH and len(items) > 1:
                pieces = _rows(items, _indent(line))
                if not line.endswith(","):  # the last item may go on
                    pieces[-1] = pieces[-1].removesuffix(",")
            out += pieces
        depth += sum((c in "([{") - (c in ")]}") for c in code)
    return "\n".join(out)


def _masked(line: str) -> str:
    """The line with the contents of its strings blanked."""
    return re.sub(r"\"[^\"]*\"|'[^']*'", lambda m: '"' + "_" * (len(m[0]) - 2) + '"', line)


def _indent(line: str) -> str:
    return " " * (len(line) - len(line.lstrip()))


def _items(line: str, start: int, end: int) -> list[str]:
    """What commas outside of brackets separate between two columns of the line."""
    masked = _masked(line)
    items, depth, last = [], 0, start
    for i in range(start, end):
        depth += (masked[i] in "([{") - (masked[i] in ")]}")
        if masked[i] == "," and depth == 0:
            items.append(line[last:i].strip())
            last = i + 1
    return list(filter(None, [*items, line[last:end].strip()]))


def _rows(items: list[str], indent: str) -> list[str]:
    """As many items to a line as fit, each followed by a comma."""
    rows, row = [], ""
    for item in items:
        if row and len(indent) + len(row) + len(item) + 3 > WIDTH:
            rows.append(f"{indent}{row},")
            row = item
        else:
            row = f"{row}, {item}" if row else item
    return [*rows, f"{indent}{row},"]


def _broken(line: str) -> list[str]:
    masked = _masked(line)
    indent = _indent(line)
    stack: list[int] = []
    pairs: list[tuple[int, int]] = []
    for i, char in enumerate(masked):
        if char in "([{":
            stack.append(i)
        elif char in ")]}" and stack:
            pairs.append((stack.pop(), i))
    outer = [(a, b) for a, b in pairs if b == len(line.rstrip(" :,")) - 1]
    if not outer:
        return [line]
    start, end = max(outer, key=lambda p: p[1] - p[0])
    broken = [line[: start + 1], *_rows(_items(line, start + 1, end), indent + "    "), indent + line[end:]]
    return [piece for part in broken for piece in (_broken(part) if len(part) > WIDTH and part != line else [part])]
