"""The wheel: built, installed in an environment of its own, used from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("tle_attn", "components", "recipes", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        run("cp", "-r", ROOT / name, source / name, cwd=folder)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "out", source, cwd=folder)
    (made,) = (folder / "out").glob("*.whl")
    return made


def test_wheel_holds_the_block_library_the_recipes_and_nothing_of_a_generic_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names} == {"tle_attn", wheel.name.rsplit("-", 3)[0].replace("-py3", "") + ".dist-info"}
    for folder, inside in (("tle_attn", "tle_attn"), ("components", "tle_attn/components"), ("recipes", "tle_attn/recipes")):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".toml", ".cu", ".typed"):
                assert f"{inside}/{file.relative_to(ROOT / folder)}" in names
    assert not [n for n in names if n.startswith("tests") or "__pycache__" in n]


def test_wheel_works_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    environment, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=empty).strip())
    # dependencies come from this environment; a .pth file found through another one is not read, so an editable install stays out
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=empty)
    show_paths = "import tle_attn, tle_attn.components as c, tle_attn.recipes as r\nprint(tle_attn.__file__, *c.__path__, *r.__path__)"
    where = run(python, "-c", show_paths, cwd=empty)
    assert all(Path(p).is_relative_to(environment) for p in where.split())
    command = environment / "bin" / "tle-attn"
    assert "hy3/decode_bf16" in run(command, "list", cwd=empty)
    run(command, "new", "mine", "--from", "hy3/decode_bf16", cwd=empty)
    run(command, "generate", "mine.toml", "--target", "gluon", "--out", "made", cwd=empty)
    assert "ok" in run(command, "verify", "mine.toml", "--target", "cpu", cwd=empty)
    assert sorted(p.name for p in empty.iterdir()) == ["made", "mine.toml"]
