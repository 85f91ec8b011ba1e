"""The tutorial on a GPU, measurements included."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.watchdog import watch
from tests.test_docs import ROOT
from tests.test_docs import test_blocks_of_a_document_run as run_document


@pytest.fixture(autouse=True)
def no_hang(request, console):
    """Most of its steps run on the CPU and take their time."""
    with watch(request.node.nodeid, 240.0, console):
        yield


def test_tutorial(tmp_path: Path, monkeypatch, capsys) -> None:
    run_document(ROOT / "docs" / "tutorial.md", tmp_path, monkeypatch, capsys)
