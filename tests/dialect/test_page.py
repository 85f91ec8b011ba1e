"""The dialect's page."""

from pathlib import Path

from tle_attn.dialect import page
from tle_attn.dialect.table import OPS


def test_every_operation_is_on_the_page():
    text = page.render()
    assert [op.name for op in OPS if f"`{op.signature}`" not in text] == []


def test_the_page_in_the_docs_is_the_table():
    assert (Path(__file__).parents[2] / "docs" / "dialect.md").read_text() == page.render(), "run python -m tle_attn.dialect.page"
