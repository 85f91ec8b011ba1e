"""Kernel texts of the emulator tests: loaded behind the CPU prelude, and broken on purpose."""

import importlib.util
import secrets
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tle_attn.emu import MARK

PRELUDE = f'"""A test kernel."""\n\nfrom tle_attn.dialect.cpu import *\n\n{MARK}\n'


@pytest.fixture
def load_text(tmp_path: Path):
    """Kernel text, or a whole module with its own prelude -> module."""
    made = []

    def load(text: str) -> ModuleType:
        path = tmp_path / f"kernel_{len(made)}.py"
        made.append(path)
        path.write_text(text if text.find(MARK) > 0 else PRELUDE + text.removeprefix(MARK))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def kernel_source():
    """Source of a module in `kernels/`."""
    return lambda name: (Path(__file__).parent / "kernels" / f"{name}.py").read_text()


@pytest.fixture
def generator() -> torch.Generator:
    """Fresh random inputs; the seed is printed when the test fails."""
    seed = secrets.randbelow(2**31)
    print("inputs from seed", seed)
    return torch.Generator().manual_seed(seed)
