"""Every operation of the dialect on the CPU emulation, against float64: the kernels that the GPU runs too."""

import copy
import importlib.util
import sys

import op_cases
import pytest
import torch
from op_cases import CASES, Box

from tle_attn import emu
from tle_attn.codegen.prelude import whole

TYPES = {"fp32": "f32", "fp16": "f16", "fp8e4nv": "fp8"}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    path = tmp_path_factory.mktemp("ops") / "op_kernels_cpu.py"
    path.write_text(whole("cpu") + "\n\n" + op_cases.kernel_text())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


def emulated(kind, value):
    if isinstance(kind, Box):
        return "descriptor", emu.TensorDescriptor(value, list(value.shape), list(value.stride()), list(kind.block_shape))
    name = kind.removeprefix("*")
    return kind.replace(name, TYPES.get(name, name)), value


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_kernel_is_right(case, seed, kernels):
    before = case.inputs(torch.Generator().manual_seed(seed))
    after = copy.deepcopy(before)
    arguments = {name: emulated(kind, after[name]) for name, kind in case.signature.items()}
    emu.launch(getattr(kernels, case.kernel), case.grid, arguments, cluster=case.cluster, threads=32 * case.warps, seed=seed)
    op_cases.assert_right(case, before, after)
