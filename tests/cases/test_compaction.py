"""Case 18: compaction by ballot for widths around a warp; the same kernel runs in tests/gpu/test_compaction.py."""

import importlib.util
import sys

import pytest
import torch

from tests.cases.compaction import CASES, SIGNATURE, TEXT, arguments, check
from tests.gpu.ops import dialect_text
from tle_attn import emu


@pytest.fixture(scope="module")
def entry(tmp_path_factory):
    """The kernel behind the emulation's dialect."""
    path = tmp_path_factory.mktemp("compaction") / "compaction_cpu.py"
    path.write_text(dialect_text("cpu") + TEXT)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.compact_between_guards
    del sys.modules[path.stem]


@pytest.mark.parametrize("width,pattern", CASES)
def test_18_ascending_complete_and_nothing_beside(entry, width, pattern, seed):
    given = arguments(width, pattern)
    emu.launch(entry, (1,), {name: (kind, given[name]) for name, kind in SIGNATURE.items()}, threads=32, seed=seed)
    assert isinstance(given["out"], torch.Tensor)
    check(given["out"], width, pattern)


@pytest.mark.parametrize("cell", [0, 6, 7 + 16, 7 + 17])
def test_18_the_check_sees_a_changed_word(cell):
    out = torch.full((2049,), -12345, dtype=torch.int32)
    out[7 : 7 + 17], out[2048] = torch.arange(1, 34, 2), 7 + 17
    check(out, 33, "alternating")
    out[cell] += 1
    with pytest.raises(AssertionError):
        check(out, 33, "alternating")
