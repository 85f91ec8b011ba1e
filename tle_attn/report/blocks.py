"""The blocks of the library, by slot."""

from __future__ import annotations

import sys

from attrs import NOTHING, Factory, fields

from ..errors import plain
from ..spec import registered
from .table import Table


def blocks_table() -> Table:
    """Every block with what its module says it is, and the options that a recipe may set, with their defaults; mainloops are the blocks that have the slots."""
    rows = []
    for cls in registered():
        what = (sys.modules[cls.__module__].__doc__ or "").strip().split("\n")[0].rstrip(".")
        options = [f"{a.name} = {_default(a.default)}" for a in fields(cls) if not {"slot", "testing"} & set(a.metadata)]
        rows.append((cls.KIND, cls.NAME, what, "\n".join(options)))
    return Table("", ("slot", "block", "what it is", "options"), rows)


def _default(default: object) -> str:
    if default is NOTHING:
        return "(to be given)"
    if isinstance(default, Factory):  # type: ignore[arg-type]  # attrs types it as a function
        default = default.factory()
    return "(depends)" if default is None else plain(default)
