"""Lint of block text: what the JIT refuses or miscompiles is refused here, with the line and the reason."""

from __future__ import annotations


def lint(source: str, file: str, line: int) -> None:
    """Raise LintError for device text that the JIT refuses or miscompiles; file and line say where it was written."""
