"""The documentation is run: every `python` block, every `tle-attn` command of a `console` block, every file that a block shows.

  * the blocks of one document run in order, in one folder and one namespace;
  * a block whose first line is a comment with a file name (`# mine.toml`, `# block.py`) is written as that file;
  * below `$ tle-attn ...`, each line must occur in the command's output, blanks and box characters aside; `...` stands for any lines;
  * a command that needs a GPU must say so where there is none, and its output is compared where there is one;
  * `make` targets that a document names exist, and links to files lead somewhere.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from attrs import frozen

from tle_attn.build import has_hopper
from tle_attn.cli import UNAVAILABLE, main
from tle_attn.spec import block as registry

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w/-]+\.(?:toml|py))$")


@frozen
class Block:
    language: str
    text: str
    line: int


def blocks_of(document: Path) -> list[Block]:
    text = document.read_text()
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]


def runnable(document: Path) -> bool:
    return any(b.language in ("python", "console") for b in blocks_of(document))


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if runnable(d)], ids=lambda d: d.name)
def test_blocks_of_a_document_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # a document may define a block, which other tests must not find; the library's own are imported before the copy
    registry.load_library()
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    before = set(sys.modules)
    namespace: dict[str, object] = {"__name__": "document"}
    try:
        for block in blocks_of(document):
            name = _FILE.match(block.text.partition("\n")[0])
            if name:
                Path(name[1]).write_text(block.text)
            elif block.language == "python":
                # the line numbers of a traceback are the document's
                exec(compile("\n" * (block.line - 1) + block.text, str(document), "exec"), namespace)
            elif block.language == "console":
                run_console(block, document, capsys)
    finally:
        for module in set(sys.modules) - before:
            if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
                del sys.modules[module]


def run_console(block: Block, document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output: str | None = ""
    for offset, line in enumerate(block.text.splitlines()):
        where = f"{document.name}:{block.line + offset}: {line}"
        if line.startswith("$ "):
            program, *arguments = shlex.split(line[2:])
            assert program == "tle-attn", f"{where}: console blocks run tle-attn only"
            capsys.readouterr()
            status = main(arguments)
            captured = capsys.readouterr()
            if status == UNAVAILABLE and not has_hopper():
                assert "NVIDIA Hopper GPU" in captured.err, where
                output = None
                continue
            assert status == 0, f"{where}\n{captured.out}{captured.err}"
            output = plain(captured.out)
        elif line.strip() not in ("...", "") and output is not None:
            assert plain(line) in output, f"{where}\nis not in the output:\n{output}"


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_make_targets_and_links_exist(document: Path) -> None:
    text = document.read_text()
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?:^|`)make ([a-z0-9]+)", text, re.MULTILINE))
    assert used <= targets
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / link).exists(), f"{document.name} links to {link}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_options_shown_outside_of_blocks_exist(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`tle-attn COMMAND` in running text names a command that there is."""
    main(["--help"])
    commands = set(re.findall(r"^│ (\w+)", capsys.readouterr().out, re.MULTILINE))
    assert set(re.findall(r"`tle-attn (\w+)", document.read_text())) <= commands
