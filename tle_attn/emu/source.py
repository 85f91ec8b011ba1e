"""Places in the kernel text: which line of the text is running, and how a report quotes it."""

import linecache
import re
import sys

MARK = "# ==== kernel text: the same for every target"

Place = tuple[str, int]  #: function name and line number in the file of the kernel text


class _Text:
    """The file whose lines, from `first_line` on, are the kernel text of the running launch."""

    file = "<no kernel>"
    first_line = 0


def set_text(file: str, first_line: int) -> None:
    """Reports quote `file` from `first_line` on."""
    _Text.file, _Text.first_line = file, first_line
    linecache.checkcache(file)


def text_of(function) -> tuple[str, int]:
    """File of `function` and the line where its kernel text begins (line 1 when the file has no mark)."""
    file = function.__code__.co_filename
    lines = linecache.getlines(file)
    return file, next((number for number, line in enumerate(lines, 1) if line.startswith(MARK)), 1)


def where() -> Place:
    """The innermost line of kernel text on the stack."""
    frame = sys._getframe(2)
    file, first_line = _Text.file, _Text.first_line
    while frame is not None:
        if frame.f_code.co_filename == file and frame.f_lineno >= first_line:
            return frame.f_code.co_name, frame.f_lineno
        frame = frame.f_back
    return "?", 0


def at(place: Place) -> str:
    """`function:line` and the text of that line."""
    return f"{place[0]}:{place[1]}  `{linecache.getline(_Text.file, place[1]).strip()}`"


def assigned_name(place: Place, default: str) -> str:
    """The name that the line assigns to: buffers and barriers are called as the text calls them."""
    match = re.match(r"\s*(\w+)\s*(?::[^=]*)?=[^=]", linecache.getline(_Text.file, place[1]))
    return match[1] if match else default
