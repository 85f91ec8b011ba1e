"""Linker: the texts of a kernel's blocks become one module that needs nothing but torch and its Triton.

  * functions are copied as source, comments and all; only reachable ones;
  * `args` is a pseudo parameter: in each function it becomes the kernel arguments that the function and its callees use;
  * chains: blocks with HOOKS join one generated function per chain, in recipe order; calls of an empty chain vanish;
  * `if` on spec constants is resolved here; constants still in use become `NAME = constexpr(value)`.
"""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from pathlib import Path

from attrs import frozen

from ..dialect.table import NAMES
from ..errors import LinkError
from ..spec import Argument, DType, Kernel
from . import source as src
from .header import header
from .lint import BUILTINS, lint
from .lint_program import lint_program
from .prelude import TARGETS, defined_names, prelude

MARK = "# ==== kernel text: the same for every target"


@frozen
class Entry:
    """A kernel of a generated module: its name and the arguments it takes, in order."""

    name: str
    arguments: tuple[Argument, ...]


@frozen
class Generated:
    """A generated module.

    Attributes:
        name: kernel name.
        target: "gluon", "tle" or "cpu".
        text: the module's source.
        entries: its kernels.
        line_map: (first line, last line, owner, file, line) of each function, to trace a line of the module to its block.
    """

    name: str
    target: str
    text: str
    entries: tuple[Entry, ...]
    line_map: tuple[tuple[int, int, str, str, int], ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def module_name(self) -> str:
        """File stem; the digest is in it because Triton's cache key does not see aliases of builtins."""
        return f"{self.name.replace('/', '_').replace('-', '_')}_{self.target}_{self.digest}"

    def entry(self, name: str) -> Entry:
        return next(e for e in self.entries if e.name == name)

    def origin(self, line: int) -> str:
        """Block and source position of a line of the module."""
        for first, last, owner, file, start in self.line_map:
            if first <= line <= last:
                return f"{owner} ({file}:{start + line - first} or nearby)"
        return "prelude"


class Linker:
    """Links one kernel; `text` and `entries` are the same for every target."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.values = {name: c.value for name, c in kernel.constants.items()}
        self.same = {name: c.same_as for name, c in kernel.constants.items() if c.same_as and self.values[c.same_as] == c.value}
        self.chains = kernel.mainloop.CHAINS
        self.functions = self._collect()
        self.micro_names = {n for where, b in kernel.blocks for f in self._micro(type(b), "cpu") for n in defined_names_of(f)}
        self._drop_empty()
        self._drop_unused_parameters()
        self.order = self._reachable()
        self._check_blocks_used()
        self.need = self._needed_arguments()
        self.entries = tuple(Entry(name, tuple(kernel.arguments[a] for a in self.need[name])) for name in self._entry_names())
        self.body, self.spans = self._body()

    # ---- collecting
    def _entry_names(self) -> list[str]:
        return [name for _, block in self.kernel.blocks for name in block.ENTRIES]

    @staticmethod
    def _micro(block: type, target: str) -> tuple[Path, ...]:
        file = src.microkernel_file(block, target)
        return (file,) if file else ()

    def _collect(self) -> dict[str, src.Text]:
        functions: dict[str, src.Text] = {}
        written: list[src.Text] = []
        for where, block in self.kernel.blocks:
            for text in src.texts_of(block, where):
                known = functions.get(text.name)
                if known and (known.file, known.line) == (text.file, text.line):
                    continue  # two blocks import it
                if known:
                    raise LinkError(f"{text.name} is defined by {known.owner} and by {where}")
                lint(text.source, text.file, text.line)
                written.append(text)
                functions[text.name] = text.edited(src.renamed(src.prune(text.source, self.values), self.same))
        lint_program(tuple(written))
        for chain, parameters in self.chains.items():
            links = [block.HOOKS[chain] for _, block in self.kernel.blocks if chain in block.HOOKS]
            if links:
                value = parameters[1]
                body = "".join(f"    {value} = {link}({', '.join(_link_parameters(functions, link, chain, parameters))})\n" for link in links)
                doc = f'    """Chain of {", ".join(links)}, in recipe order."""\n'
                functions[chain] = src.Text(chain, f"chain {chain}", f"@jit\ndef {chain}({', '.join(parameters)}):\n{doc}{body}    return {value}", "<generated>", 0)
        return functions

    def _drop_empty(self) -> None:
        """Remove calls of functions that do nothing, and branches that this leaves empty; a call of a chain that nothing joined becomes the value it was given."""
        absent = {c for c in self.chains if c not in self.functions}
        self.functions = {name: text.edited(src.replace_calls(text.source, absent, 1)) for name, text in self.functions.items()}
        while True:
            empty = {n for n, t in self.functions.items() if src.is_empty(t.tree())}
            changed = False
            for name, text in self.functions.items():
                doomed = [n for n in ast.walk(src.parse(text.source)) if isinstance(n, ast.stmt) and (_is_call_of(n, empty) or src.is_idle(n))]
                if doomed:
                    self.functions[name] = text.edited(src.remove_statements(text.source, doomed))
                    changed = True
            if not changed:
                return

    def _drop_unused_parameters(self) -> None:
        """A parameter that pruning left unused goes, here and at every call: what is off is not passed around."""
        while True:
            unused = {name: found for name, text in self.functions.items() if (found := src.unused_parameters(text.tree()))}
            if not unused:
                return
            self.functions = {name: text.edited(src.drop_parameters(text.source, name, unused)) for name, text in self.functions.items()}

    # ---- reachability
    def _reachable(self) -> list[str]:
        known = {*self.values, *BUILTINS, *self.micro_names, *NAMES, "args"}
        seen: set[str] = set()
        pending = self._entry_names()
        for name in pending:
            if name not in self.functions:
                raise LinkError(f"entry {name} is not defined by its block")
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            text = self.functions[name]
            for free in sorted(src.free_names(text.tree())):
                if free in self.functions:
                    pending.append(free)
                elif free not in known:
                    raise LinkError(f"{text.file}:{text.line}: {name} uses {free}, which is no operation of the dialect, constant or function of the kernel's blocks")
        # chains are read before the mainloop that calls them, and kernels come last
        last = self.kernel.blocks[-1][0]
        rank = {name: (t.owner == last, name in self._entry_names()) for name, t in self.functions.items()}
        return sorted((name for name in self.functions if name in seen), key=lambda name: rank[name])

    def _check_blocks_used(self) -> None:
        owners = {self.functions[n].owner for n in self.order}
        used = set().union(*(src.free_names(self.functions[n].tree()) for n in self.order))
        for where, block in self.kernel.blocks:
            texts = src.texts_of(block, where)
            micro = {n for f in self._micro(type(block), "cpu") for n in defined_names_of(f)}
            if texts and where not in owners and not micro & used:
                raise LinkError(f"{where}: the kernel would not use the block {block.label()}; take it out of the recipe")

    def _needed_arguments(self) -> dict[str, list[str]]:
        direct = {n: src.used_arguments(self.functions[n].tree()) for n in self.order}
        callees = {n: {c for c, _ in src.argument_sites(self.functions[n].tree()) if c in self.functions} for n in self.order}
        changed = True
        while changed:
            changed = False
            for name in self.order:
                more = direct[name].union(*(direct[c] for c in callees[name]))
                changed |= more != direct[name]
                direct[name] = more
        known = self.kernel.arguments
        for name, used in direct.items():
            for argument in sorted(used - set(known)):
                text = self.functions[name]
                raise LinkError(f"{text.file}:{text.line}: {name} uses args.{argument}, which no block of the kernel declares")
        return {name: [a for a in known if a in used] for name, used in direct.items()}

    def calls(self) -> list[tuple[str, str, str]]:
        """(caller's block, callee's block, function) where a block's text calls another's, in order; a chain belongs to the block that calls it."""
        last = self.kernel.blocks[-1][0]
        owners = {name: last if name in self.chains else text.owner for name, text in self.functions.items()}
        found = {(owners[n], owners[c], c): None for n in self.order for c in sorted(src.free_names(self.functions[n].tree())) if c in self.functions}
        return [call for call in found if call[0] != call[1]]

    # ---- emitting
    def _body(self) -> tuple[str, list[tuple[int, int, str, str, int]]]:
        lines: list[str] = []
        spans: list[tuple[int, int, str, str, int]] = []
        used = set().union(*(src.free_names(self.functions[n].tree()) for n in self.order))
        for name, constant in self.kernel.constants.items():
            if name in used:
                value = constant.value.text if isinstance(constant.value, DType) else repr(constant.value)
                lines.append(f"{name} = constexpr({value})" + (f"  # {constant.doc}" if constant.doc else ""))
        owner = None
        for name in self.order:
            text = src.flatten_arguments(self.functions[name], self.need)
            lines += ["", ""]
            if text.owner != owner:
                owner = text.owner
                lines += [f"# ---- {self._title(owner)}"]
            start = len(lines) + 1
            lines += src.wrap(text.source).splitlines()
            spans.append((start, len(lines), owner, text.file, text.line))
        return "\n".join(lines) + "\n", spans

    def _title(self, owner: str) -> str:
        block = dict(self.kernel.blocks).get(owner)
        return f"{owner}: {block.label()}" if block else owner

    def used_names(self) -> set[str]:
        """Dialect names that the text uses, dtype names of constants included."""
        used = set().union(*(src.free_names(self.functions[n].tree()) for n in self.order)) | {"jit"}
        constants = [c.value for n, c in self.kernel.constants.items() if n in used]
        if constants:
            used |= {"constexpr"}
        return used | {v.text for v in constants if isinstance(v, DType)}

    def generate(self, target: str) -> Generated:
        """The module for one target."""
        micro = tuple(dict.fromkeys(f for _, b in self.kernel.blocks for f in self._micro(type(b), target)))
        used = self.used_names()
        known = defined_names(target, micro)
        missing = sorted(n for n in used if n not in known and n not in self.functions and n not in self.values and n not in BUILTINS)
        if missing:
            raise LinkError(f"target {target} does not define {', '.join(missing)}, which {self.kernel.name} uses")
        head = f'"""{header(self.kernel, target, self.entries)}"""\n\n' + prelude(target, used, micro) + f"\n\n\n{MARK}\n"
        offset = head.count("\n")
        return Generated(self.kernel.name, target, head + self.body, self.entries, tuple((a + offset, b + offset, *rest) for a, b, *rest in self.spans))


def _is_call_of(node: ast.stmt, empty: set[str]) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id in empty


def _link_parameters(functions: dict[str, src.Text], link: str, chain: str, parameters: tuple[str, ...]) -> list[str]:
    """What a chain passes to one of its links: those of its parameters that the link takes, by name and in the chain's order."""
    if link not in functions:
        raise LinkError(f"{link}, which joins the chain {chain}, is not defined by its block")
    text = functions[link]
    taken = [a.arg for a in text.tree().args.args]
    if taken != [p for p in parameters if p in taken] or taken[:2] != list(parameters[:2]):
        raise LinkError(f"{text.file}:{text.line}: {link} takes ({', '.join(taken)}), but a link of {chain} takes {', '.join(parameters[:2])} and any of {', '.join(parameters[2:])}, in this order")
    return taken


def defined_names_of(file: Path) -> set[str]:
    """Functions that a microkernel file defines."""
    return {n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)}


@lru_cache(maxsize=256)
def _linker(kernel: Kernel) -> Linker:
    return Linker(kernel)


def generate(kernel: Kernel, target: str) -> Generated:
    """Generate the module of `kernel` for `target` ("gluon", "tle" or "cpu").

    Raises:
        LinkError: an undefined name, a name defined twice, or a block that the kernel would not use.
        LintError: block text that the JIT refuses or miscompiles.
    """
    if target not in TARGETS:
        raise LinkError(f"no target is called {target!r}; there are {', '.join(TARGETS)}")
    return _linker(kernel).generate(target)


def entries_of(kernel: Kernel) -> tuple[Entry, ...]:
    """The kernels of `kernel`'s module and their arguments; the same for every target."""
    return _linker(kernel).entries


def calls_of(kernel: Kernel) -> list[tuple[str, str, str]]:
    """(recipe key of the caller, recipe key of the callee, function) of every call between blocks."""
    return _linker(kernel).calls()


__all__ = ["MARK", "Entry", "Generated", "calls_of", "entries_of", "generate"]
