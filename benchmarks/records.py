"""Records of measurements: JSON files that say on what, when, with which versions and by which command."""

from __future__ import annotations

import datetime
import json
import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define, field


@define
class Record:
    """A measurement in the making; `save` after each row keeps what there is if a later one fails.

    Attributes:
        what: what was measured and how, in a sentence or two.
        versions: of `tle_attn.build.versions()`; its "gpu" is named apart.
        command: as typed, without the folder of its output.
        settings: further facts of the whole run.
        rows: dicts; numbers are rounded when they are written.
    """

    what: str
    versions: dict[str, str]
    command: str
    settings: dict[str, Any] = field(factory=dict)
    rows: list[dict[str, Any]] = field(factory=list)
    date: str = field(factory=lambda: datetime.date.today().isoformat())

    def to_dict(self) -> dict[str, Any]:
        versions = dict(self.versions)
        gpu = versions.pop("gpu", "none")
        return {"what": self.what, "gpu": gpu, "date": self.date, "versions": versions, "command": self.command, **self.settings, "rows": self.rows}

    def save(self, path: Path) -> None:
        """Write the file whole: one row a line, and never half of it."""
        head = self.to_dict()
        rows = head.pop("rows")
        text = "{\n" + "".join(f"{json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items())
        text += '"rows": [\n' + ",\n".join(json.dumps(_rounded(row)) for row in rows) + "\n]\n}\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(text)
        os.replace(temporary, path)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Times to a hundredth of a microsecond, other numbers to four digits; JSON has no NaN and no infinity, so they are null."""

    def rounded(key: str, value: Any) -> Any:
        if not isinstance(value, float):
            return value
        if not math.isfinite(value):
            return None
        return round(value, 2) if "us" in key.split("_") else float(f"{value:.4g}")

    return {key: rounded(key, value) for key, value in row.items()}


def described(document: str | None) -> str:
    """What a benchmark's docstring says behind its first line, as the `what` of its records."""
    return " ".join((document or "").partition("\n\n")[2].split())


def command_line(module: str, argv: Sequence[str], outputs: Sequence[str] = ("--out",)) -> str:
    """The command of a record; of files that it writes only the names are kept."""
    words = list(argv)
    for i, word in enumerate(words[:-1]):
        if word in outputs:
            words[i + 1] = Path(words[i + 1]).name
    return shlex.join(["python", "-m", module, *words])


def read(path: Path) -> dict[str, Any]:
    """A record as it was written."""
    return json.loads(path.read_text())
