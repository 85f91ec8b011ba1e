"""Compile failures, told in a few lines: which kernel, which line of the module, what is wrong. The compiler's own dump goes to a file."""

from __future__ import annotations

import faulthandler
import io
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from attrs import define

from tle_attn.errors import TleAttnError

_redirect_lock = threading.Lock()


class BuildError(TleAttnError):
    """A kernel cannot be compiled as asked."""


class CompileError(BuildError):
    """The compiler refuses the kernel text.

    Attributes:
        entry: the kernel.
        path: the module's file.
        line: line of the module, or None where the compiler names none.
        reason: what the compiler says, in one line.
        log: file with everything that the compiler printed, or None.
    """

    def __init__(self, entry: str, path: Path, line: int | None, reason: str, calls: tuple[str, ...] = (), log: Path | None = None):
        self.entry, self.path, self.line, self.reason, self.log = entry, path, line, reason, log
        text = f"\n    {path.read_text().splitlines()[line - 1].strip()}" if line else ""
        chain = f"\n  called from {', from '.join(calls)}" if calls else ""
        dump = f"\n  compiler output: {log}" if log else ""
        super().__init__(f"kernel {entry} does not compile: {path}{f':{line}' if line else ''}{text}\n  {reason}{chain}{dump}")


@define
class Printed:
    """What a compiler printed: Python's standard output, and the process's standard error."""

    out: str = ""
    err: str = ""

    @property
    def text(self) -> str:
        """Both."""
        return self.out + self.err


@contextmanager
def captured_output(path: Path) -> Iterator[Printed]:
    """Collect what is printed, by Python or by native code, until the block ends; one thread at a time.

    A compiler that aborts the process leaves what it printed in the file at `path`, and Python tells where it was.
    """
    printed = Printed()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _redirect_lock, open(path, "w+b") as file:
        sys.stderr.flush()
        saved = os.dup(2)
        tell = not faulthandler.is_enabled()
        if tell:
            faulthandler.enable(saved)
        os.dup2(file.fileno(), 2)
        try:
            with redirect_stdout(io.StringIO()) as out:
                yield printed
        finally:
            os.dup2(saved, 2)
            if tell:
                faulthandler.disable()
            os.close(saved)
            file.seek(0)
            printed.out, printed.err = out.getvalue(), file.read().decode(errors="replace")
            path.unlink()


def _module_line(error: Any, source: str) -> int | None:
    """Line of the module that a front-end error points to: its own line counts from the function's `def`."""
    start = source.find(error.src) if getattr(error, "src", None) else -1
    if start < 0 or not hasattr(error.node, "lineno"):
        return None
    return source.count("\n", 0, start) + error.node.lineno


def explain(error: BaseException, entry: str, path: Path, printed: str, log: Path) -> CompileError:
    """The clear error for `error`, raised while `entry` of the module at `path` was compiled; what was printed goes to the file `log`."""
    source = path.read_text()
    lines: list[int] = []
    cause: BaseException = error
    while True:
        line = _module_line(cause, source)
        if line and line not in lines[-1:]:
            lines.append(line)
        if cause.__cause__ is None:
            break
        cause = cause.__cause__
    reason = getattr(cause, "error_message", None) or str(cause) or type(cause).__name__
    diagnostic = re.search(rf"{re.escape(path.name)}\W*:(\d+):\d+\W*: error: (.*)", printed) or re.search(r"()error: (.*)", printed)
    assertion = re.search(r"Assertion .*?\"(.*?)\". failed", printed)
    if not lines and assertion:
        reason = f"the compiler's assertion failed: {assertion[1]}"
    elif not lines and diagnostic:
        reason = diagnostic[2]
        lines = [int(diagnostic[1])] if diagnostic[1] else []
    refusal = re.search(r"ptxas\S* .*?line \d+;\s*(?:error|fatal)\s*:\s*(.*)", f"{reason}\n{printed}")
    if refusal:
        reason = f"ptxas: {refusal[1]}"
    if printed.strip():
        log.write_text(printed)
    where = tuple(f"line {n}" for n in reversed(lines[:-1]))
    return CompileError(entry, path, lines[-1] if lines else None, reason.strip().splitlines()[0], where, log if printed.strip() else None)
