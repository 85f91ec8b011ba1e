"""Blocks of a user's own file."""

import sys

import pytest

from tle_attn.cli import OK, REFUSED, main
from tle_attn.errors import SpecError
from tle_attn.spec import block as registry
from tle_attn.spec import find_block, import_blocks

BLOCK = """
from attrs import frozen

from tle_attn.dialect import jit
from tle_attn.spec import Block


@frozen(kw_only=True)
class Halve(Block):
    KIND, NAME, HOOKS = "score", "halve_for_a_test", {"score": "halve_scores"}

    def oracle_options(self, problem, given):
        return {"score_steps": (lambda s, key, query, head, sequence: s / 2,)}


@jit
def halve_scores(args, s):
    return s * 0.5
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    path = tmp_path / "mine.py"
    path.write_text(BLOCK)
    yield path
    for name in [n for n in sys.modules if n.startswith("tle_attn_blocks_mine")]:
        del sys.modules[name]


def test_its_blocks_are_found_by_name_and_once(file):
    import_blocks(file)
    found = find_block("score", "halve_for_a_test")
    import_blocks(file)
    assert find_block("score", "halve_for_a_test") is found and found.source_file() == file


def test_the_command_verifies_a_recipe_that_uses_it(file, capsys):
    recipe = file.with_name("halved.toml")
    recipe.write_text('extends = "hy3/decode_bf16"\n\n[[score]]\nblock = "halve_for_a_test"\n')
    assert main(["verify", str(recipe), "--target", "cpu"]) == REFUSED
    assert main(["--import", str(file), "verify", str(recipe), "--target", "cpu"]) == OK
    assert "ok" in capsys.readouterr().out


def test_files_that_cannot_be_imported(tmp_path):
    with pytest.raises(SpecError, match="there is no Python file"):
        import_blocks(tmp_path / "none.py")
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name")
    with pytest.raises(SpecError, match="cannot be imported: ModuleNotFoundError"):
        import_blocks(broken)
    assert not [n for n in sys.modules if n.startswith("tle_attn_blocks_broken")]
