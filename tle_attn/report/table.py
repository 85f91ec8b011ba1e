"""Table: a titled grid of text, the one shape that every report is made of."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import field, frozen


def _as_text(rows: Iterable[Iterable[object]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(str(cell) for cell in row) for row in rows)


@frozen
class Table:
    """A table with a title.

    Attributes:
        title: heading.
        columns: column names; a name that starts with ">" is aligned to the right.
        rows: one tuple of text per row, as long as `columns`.
        note: sentences below the table.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = field(converter=_as_text)
    note: str = ""

    @rows.validator
    def _rectangular(self, attribute: object, value: tuple[tuple[str, ...], ...]) -> None:
        for row in value:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: row {row} has {len(row)} cells, not {len(self.columns)}")

    @property
    def headings(self) -> tuple[str, ...]:
        """Column names without the mark for alignment."""
        return tuple(name.removeprefix(">") for name in self.columns)

    def markdown(self, level: int = 2) -> str:
        """The table in Markdown, under a heading of this level."""
        lines = [f"{'#' * level} {self.title}", ""] if self.title else []
        if self.rows:
            lines.append("| " + " | ".join(self.headings) + " |")
            lines.append("|" + "|".join("---:" if name.startswith(">") else "---" for name in self.columns) + "|")
            lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in row) + " |" for row in self.rows]
        if self.note:
            lines += ["", self.note] if self.rows else [self.note]
        return "\n".join(lines) + "\n"
