"""Tables as data and as Markdown."""

from __future__ import annotations

import pytest

from tle_attn.report.table import Table


def test_markdown() -> None:
    table = Table("Sizes", ("name", ">bytes"), (("a|b", 1), ("c\nd", 22)), "A note.")
    assert table.markdown(3).splitlines() == ["### Sizes", "", "| name | bytes |", "|---|---:|", "| a\\|b | 1 |", "| c<br>d | 22 |", "", "A note."]


def test_rows_are_as_long_as_the_columns() -> None:
    with pytest.raises(ValueError, match="1 cells, not 2"):
        Table("", ("a", "b"), (("only one",),))
