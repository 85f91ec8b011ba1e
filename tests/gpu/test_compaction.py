"""Compaction by ballot between guard words, for widths around a warp."""

import pytest
import torch

from tests.cases.compaction import CASES, SIGNATURE, TEXT, arguments, check
from tests.gpu.ops import dialect_text
from tle_attn.build import compile_module


@pytest.mark.parametrize("width,pattern", CASES)
def test_ascending_complete_and_nothing_beside(width, pattern):
    given = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in arguments(width, pattern).items()}
    compile_module(dialect_text("gluon") + TEXT, "compact_between_guards", SIGNATURE, num_warps=1).launch((1,), [given[name] for name in SIGNATURE])
    check(given["out"].cpu(), width, pattern)
