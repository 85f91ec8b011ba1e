"""A new recipe file that extends another one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ..errors import SpecError, written
from ..recipe import load
from ..report.explain import problem_keys
from ..spec.flat import recipe_options

_NAME = re.compile(r"[A-Za-z_]\w*(?:[/-][A-Za-z_0-9]\w*)*")


def write_recipe(name: str, parent: str, folder: Path) -> Path:
    """Write `folder`/NAME.toml, which extends `parent`, and load it once.

    The file lists the parent's options as comments, so that a variant starts by taking away a "#".

    Raises:
        SpecError: the parent is no recipe, the name is no name, or the file is there already.
    """
    if not _NAME.fullmatch(name):
        raise SpecError(f"{name!r} is no name for a recipe", allowed="words of letters, digits and _, joined by / or -")
    base = load(parent)
    kernel = base.kernel()
    file = folder / f"{name}.toml"
    if file.exists():
        raise SpecError(f"{file} is there already", reason="a recipe is never overwritten")
    # a recipe of the library goes by its name, any other by its path
    extends = base.name if parent == base.name else str(Path(parent).resolve())
    lines = [f"summary = {json.dumps(f'{base.summary}, changed')}", f"extends = {json.dumps(extends)}", ""]
    lines += ["# Options of the parent, each with its value there.  Take away the # of a line and of its [table], and change the value;", f"# `tle-attn explain {file}` shows what comes out."]
    lines += ["", "# [problem]"] + [f"# {key} = {written(getattr(kernel.problem, key))}" for key in problem_keys(kernel)]
    slots = type(kernel.mainloop).slots()
    for where, block in kernel.blocks:
        many = where.split("[")[0] in slots and slots[where.split("[")[0]][1]
        table = f"[[{where.split('[')[0]}]]" if many else f"[{where}]"
        lines += ["", f"# {table}  # {block.title()}", f'# block = "{block.NAME}"']
        lines += [f"# {key} = {written(value)}" for key, value in recipe_options(block).items() if value is not None]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    load(file).kernel()
    return file
