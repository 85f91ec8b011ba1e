"""Plans whose executor only notes what it is told to launch."""

from typing import Any

import pytest
import torch
from attrs import define, field

import tle_attn
from tle_attn.testing import DecodeProblem, make_decode_problem


@define
class RecordingExecutor:
    """Stands in for a GPU of `ctas` resident CTAs; launches are noted and not run."""

    ctas: int = 8
    launches: list[tuple[str, tuple[int, ...], dict[str, Any]]] = field(factory=list)

    def resident_ctas(self, entry: str) -> int:
        return self.ctas

    def multiprocessors(self) -> int:
        return self.ctas

    def l2_bytes(self) -> int:
        return 1 << 20

    def descriptor(self, box, tensor, shape, strides):
        return box, tensor.data_ptr(), shape, strides

    def launch(self, entry, grid, arguments, values):
        self.launches.append((entry, grid, dict(zip([a.name for a in arguments], values, strict=True))))


@pytest.fixture
def executor(monkeypatch) -> RecordingExecutor:
    recording = RecordingExecutor()
    monkeypatch.setattr("tle_attn.runtime.base.make_executor", lambda *_: recording)
    return recording


@pytest.fixture
def make_plan(executor):
    """make_plan(recipe name, {option: value}, **geometry) -> plan; by default of 3 sequences with 8 query heads over one."""

    def make(name: str = "hy3/decode_bf16", options: dict[str, Any] | None = None, **geometry: Any):
        return tle_attn.load(name).set(options or {}).plan(**{"batch": 3, "query_heads": 8, "kv_heads": 1, "target": "cpu", **geometry})

    return make


@pytest.fixture
def problem() -> DecodeProblem:
    return make_decode_problem([5, 64, 200])


@pytest.fixture
def arguments(problem) -> dict[str, torch.Tensor]:
    """What `run` takes for `problem`, as keyword arguments."""
    return {name: getattr(problem, name) for name in ("q", "k_cache", "v_cache", "block_ids", "kv_lens")}
