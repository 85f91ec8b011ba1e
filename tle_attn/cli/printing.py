"""Printing: reports as tables on the terminal, plain text where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

if TYPE_CHECKING:
    from ..report.table import Table

#: columns where the output is no terminal: wide enough that logs break no row
WIDTH_OF_FILES = 160


def console(*, error: bool = False) -> Console:
    """A console for standard output, or standard error."""
    made = Console(stderr=error, highlight=False, soft_wrap=False)
    return made if made.is_terminal else Console(stderr=error, highlight=False, width=WIDTH_OF_FILES)


def show_table(table: Table, to: Console | None = None) -> None:
    """Print a table with its title above and its note below."""
    to = to or console()
    if table.title:
        to.print(f"[bold]{escape(table.title)}[/bold]")
    if table.rows:
        grid = Grid(show_header=any(table.headings), box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name, heading in zip(table.columns, table.headings, strict=True):
            number = name.startswith(">")
            grid.add_column(escape(heading), justify="right" if number else "left", overflow="fold", no_wrap=number)
        for row in table.rows:
            grid.add_row(*map(escape, row))
        to.print(grid)
    if table.note:
        to.print(f"[dim]{escape(table.note)}[/dim]")
    to.print()
