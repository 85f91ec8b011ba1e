"""Blocks that exist for one test, and a compile cache of these tests' own."""

import importlib.util
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tle_attn.spec import Kernel, Problem, Resources, Role


@pytest.fixture(autouse=True, scope="session")
def compile_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TLE_ATTN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


class Library:
    """Blocks written for one test: a mainloop `loop` with one slot for many `part` blocks and the chain `change(args, x)`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.count = 0

    def block(self, text: str, *, base: str = "Block", name: str = "part", **attributes: Any) -> type:
        """A block class whose module holds `text` as its device text; attributes: class attributes, or the results of its methods."""
        self.count += 1
        file = self.folder / f"{name}_{self.count}.py"
        slots = 'pieces: tuple = slot("part", many=True)\n    CHAINS = {"change": ("args", "x")}' if base == "Mainloop" else "pass"
        file.write_text(
            f'"""Block {name}."""\n\nfrom attrs import frozen\n\nfrom tle_attn.dialect import *\nfrom tle_attn.spec import Block, Mainloop, slot\n\n\n'
            f"@frozen(kw_only=True)\nclass Spec({base}):\n    {slots}\n\n\n{textwrap.dedent(text).strip()}\n"
        )
        spec = importlib.util.spec_from_file_location(f"library_of_{self.folder.name}_{file.stem}", file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        cls = module.Spec
        cls.KIND, cls.NAME = ("mainloop", "loop") if base == "Mainloop" else ("part", name)
        for key, value in attributes.items():
            setattr(cls, key, value if key.isupper() else lambda self, problem, value=value: value)
        return cls

    def kernel(self, text: str, *parts: type, **attributes: Any) -> Kernel:
        """A kernel whose mainloop has `text`; its entry is `kernel` unless ENTRIES says otherwise."""
        roles = Resources(roles=(Role("main", "kernel", 4, 0),))
        cls = self.block(text, base="Mainloop", name="loop", **{"ENTRIES": ("kernel",), "resources": roles, **attributes})
        cls.launch_note = lambda self, problem, entry: f"how {entry} is launched"
        return Kernel(name="test/kernel-1", problem=Problem(), mainloop=cls(pieces=tuple(p() for p in parts)), summary="A test.")


@pytest.fixture
def library(tmp_path):
    made = Library(tmp_path)
    yield made
    for name in [n for n in sys.modules if n.startswith(f"library_of_{tmp_path.name}_")]:
        del sys.modules[name]
