"""Generated modules, compared byte for byte with the copies in tests/golden: a change of a block shows its effect on every kernel as a diff.

Of a variant the cpu module alone is kept: the kernel text below its prelude is that of every target.

`make golden` (python -m tests.test_golden) writes the copies anew.
"""

from __future__ import annotations

import difflib
import itertools
from pathlib import Path

import pytest

import tle_attn
from tle_attn.codegen import MARK, generate

GOLDEN = Path(__file__).parent / "golden"
TARGETS = ("gluon", "tle", "cpu")
RECIPES = tle_attn.list_recipes()
KEPT = [(recipe, target) for recipe in RECIPES for target in (("cpu",) if recipe.startswith("variants/") else TARGETS)]


def golden_file(recipe: str, target: str) -> Path:
    return GOLDEN / f"{recipe.replace('/', '_')}_{target}.py"


def text_of(recipe: str, target: str) -> str:
    """The module of a recipe's default point."""
    return generate(tle_attn.load(recipe).kernel(), target).text


def refresh() -> None:
    """Write every golden copy, and remove those of recipes that are gone."""
    GOLDEN.mkdir(exist_ok=True)
    texts = {golden_file(recipe, target): text_of(recipe, target) for recipe, target in KEPT}
    for file in set(GOLDEN.glob("*.py")) - set(texts):
        file.unlink()
        print(f"removed {file.name}")
    for file, text in texts.items():
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(f"wrote {file.name}")


@pytest.mark.parametrize("recipe,target", KEPT)
def test_module_is_its_golden_copy(recipe: str, target: str) -> None:
    file, text = golden_file(recipe, target), text_of(recipe, target)
    assert file.exists(), f"{file.name} is missing: run `make golden`"
    if text.encode() != file.read_bytes():
        diff = difflib.unified_diff(file.read_text().splitlines(), text.splitlines(), f"golden/{file.name}", "generated now", lineterm="", n=1)
        pytest.fail("\n".join(["run `make golden` if this change is meant", *itertools.islice(diff, 60)]), pytrace=False)


def test_no_golden_copy_is_left_over() -> None:
    assert {f.name for f in GOLDEN.iterdir() if f.suffix == ".py"} == {golden_file(r, t).name for r, t in KEPT}


@pytest.mark.parametrize("recipe", RECIPES)
def test_kernel_text_is_the_same_for_every_target(recipe: str) -> None:
    parts = [text_of(recipe, target).split(MARK + "\n") for target in TARGETS]
    assert all(len(p) == 2 for p in parts)
    assert len({p[1] for p in parts}) == 1
    assert len({p[0] for p in parts}) == len(TARGETS)


@pytest.mark.parametrize("recipe,target", KEPT)
def test_golden_copies_keep_the_house_rules(recipe: str, target: str) -> None:
    text = golden_file(recipe, target).read_text()
    compile(text, golden_file(recipe, target).name, "exec")
    assert text.isascii() and text.endswith("\n") and not text.endswith("\n\n")
    assert not [line for line in text.splitlines() if line != line.rstrip() or "\t" in line]


if __name__ == "__main__":
    refresh()
