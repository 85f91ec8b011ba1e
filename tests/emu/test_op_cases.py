"""The kernels that are compared with a GPU operation by operation, on the emulation, in several schedules."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from tle_attn import emu

_PATH = Path(__file__).parent.parent / "dialect" / "op_cases.py"
_SPEC = importlib.util.spec_from_file_location("op_cases", _PATH)
op_cases = sys.modules.setdefault("op_cases", importlib.util.module_from_spec(_SPEC))
_SPEC.loader.exec_module(op_cases)
NAMES = {"*fp32": "*f32", "*fp16": "*f16", "*fp8e4nv": "*fp8", "fp32": "f32"}


@pytest.mark.parametrize("case", op_cases.CASES, ids=[case.kernel for case in op_cases.CASES])
def test_agrees_with_the_reference(load_text, generator, case):
    entry = getattr(load_text(op_cases.kernel_text()), case.kernel)
    for seed in range(3):
        values = case.inputs(generator)
        expected = case.expected(values)
        args = {}
        for name, kind in case.signature.items():
            value = values[name]
            if isinstance(kind, op_cases.Box):
                args[name] = emu.TensorDescriptor(value, value.shape, value.stride(), kind.block_shape)
            else:
                args[name] = (NAMES.get(kind, kind), value)
        emu.launch(entry, case.grid, args, seed=seed, cluster=case.cluster, threads=32 * case.warps)
        for name, want in expected.items():
            want = want.to(values[name].dtype).double().flatten()
            error = (values[name].double().flatten() - want).abs().max() / want.abs().max().clamp(min=1e-30)
            assert error <= case.tolerance, name
