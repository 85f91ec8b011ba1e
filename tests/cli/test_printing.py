"""Tables and progress where there is no terminal: plain text, every cell, one line per step."""

from __future__ import annotations

import io

from rich.console import Console

from tle_attn.cli.printing import show_table
from tle_attn.cli.progress import shown
from tle_attn.report.table import Table


def text_of(table: Table, width: int = 80) -> str:
    out = io.StringIO()
    show_table(table, Console(file=out, width=width))
    return out.getvalue()


def test_cells_are_printed_as_they_are() -> None:
    shown_text = text_of(Table("Ring [bold]", ("name", ">bytes"), (("bf16[3, 64]", "1,024"), ("[red]", "7")), "note [/x]"))
    lines = [line.rstrip() for line in shown_text.splitlines()]
    assert lines[:5] == ["Ring [bold]", "name         bytes", "bf16[3, 64]  1,024", "[red]            7", "note [/x]"]


def test_numbers_stay_whole_in_a_narrow_terminal() -> None:
    assert "123,456,789" in text_of(Table("", ("text", ">bytes"), (("word " * 20, "123,456,789"),)), width=40)


def test_progress_without_a_terminal_is_one_line_per_step() -> None:
    out = io.StringIO()
    with shown(Console(file=out, width=80)) as tell:
        tell(1, 24, "first [1]")
        tell(2, 24, "second")
    assert out.getvalue().splitlines() == ["[  1/24] first [1]", "[  2/24] second"]


def test_progress_on_a_terminal_is_a_bar_that_ends_full() -> None:
    out = io.StringIO()
    with shown(Console(file=out, width=80, force_terminal=True)) as tell:
        tell(24, 24, "last")
    assert "24/24" in out.getvalue() and "last" in out.getvalue()
