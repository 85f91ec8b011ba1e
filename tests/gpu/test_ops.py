"""Every operation of the dialect on a Hopper GPU, against float64: the kernels that the emulation runs too."""

import copy
import sys
from pathlib import Path

import pytest
import torch

from tle_attn.build import Descriptor, compile_module, descriptor, has_hopper
from tle_attn.codegen.prelude import whole

sys.path.insert(0, str(Path(__file__).parent.parent / "dialect"))
import op_cases  # noqa: E402
from op_cases import CASES, Box  # noqa: E402

pytestmark = pytest.mark.skipif(not has_hopper(), reason="needs an NVIDIA Hopper GPU (compute capability 9.0)")

TEXT = whole("gluon") + op_cases.kernel_text()


def on_gpu(kind, value):
    if isinstance(kind, Box):
        return descriptor(value, value.shape, value.stride(), kind.block_shape, kind.dtype)
    return value


def compiled(case):
    signature = {name: Descriptor(kind.dtype, kind.block_shape) if isinstance(kind, Box) else kind for name, kind in case.signature.items()}
    return compile_module(TEXT, case.kernel, signature, num_warps=case.warps, launch_pdl=case.launch_pdl)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_kernel_is_right(case):
    kernel = compiled(case)
    for seed in range(3):
        before = case.inputs(torch.Generator().manual_seed(seed))
        after = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in copy.deepcopy(before).items()}
        kernel.launch(case.grid, [on_gpu(kind, after[name]) for name, kind in case.signature.items()])
        torch.cuda.synchronize()
        op_cases.assert_right(case, before, after)


def test_launch_in_a_captured_graph():
    """Loaded before, a launch can be captured; a replay computes on what the tensors hold then."""
    case = next(case for case in CASES if case.kernel == "k_roles")
    kernel = compiled(case)
    kernel.load()
    before = case.inputs(torch.Generator().manual_seed(0))
    after = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in before.items()}
    arguments = [on_gpu(kind, after[name]) for name, kind in case.signature.items()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.launch(case.grid, arguments)
    again = case.inputs(torch.Generator().manual_seed(1))
    after["x_desc"].copy_(again["x_desc"])
    graph.replay()
    torch.cuda.synchronize()
    op_cases.assert_right(case, again, after)
