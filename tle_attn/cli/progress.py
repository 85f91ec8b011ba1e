"""Progress of a long command: a bar on a terminal, one line per step elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: called with (steps done, steps in all, what was just done)
Tell = Callable[[int, int, str], None]


@contextmanager
def shown(console: Console) -> Iterator[Tell]:
    """Yield a function that is told of every step."""
    if not console.is_terminal:
        yield lambda done, total, what: console.print(f"[{done:>3}/{total}] {what}", markup=False)
        return
    columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda done, total, what: progress.update(task, completed=done, total=total, description=what)
