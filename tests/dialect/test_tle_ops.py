"""Each operation of the dialect on the emulated TLE: the kernels and references that the other targets run too."""

import ast
import secrets

import pytest
import torch
from op_cases import CASES, Box, OpCase, assert_right, kernel_text

from tle_attn import emu
from tle_attn.codegen.prelude import prelude
from tle_attn.emu.tle_target import TLEContractError, TLENotEmulated, check_contract, load_tle_module

TYPES = {"*bf16": "*bf16", "*fp16": "*f16", "*fp32": "*f32", "*fp8e4nv": "*fp8", "*i32": "*i32", "i32": "i32", "fp32": "f32"}

#: cases that TLE cannot do, or that its emulation does not cover, and how the emulation says so
IMPOSSIBLE = {
    "k_cluster_roles": (emu.BarrierMisuse, "cluster_barrier inside warp_specialize"),  # cluster_push_wait is a barrier of all threads
    "k_cluster_deal": (TLENotEmulated, "a store through local_ptr with indices"),
    "k_cluster_hands": (emu.BarrierMisuse, "cluster_barrier inside warp_specialize"),  # so is cluster_wait
    "k_named": (TLEContractError, "a named barrier needs a compile-time index"),
}


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    text = kernel_text()
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    source = f'"""Operations of the dialect."""\n{prelude("tle", used)}\n\n{text}'
    check_contract(source)
    path = tmp_path_factory.mktemp("ops") / "op_kernels_tle.py"
    path.write_text(source)
    return load_tle_module(path)


def argument(kind: str | Box, value: object) -> object:
    if isinstance(kind, Box):
        return emu.TensorDescriptor(value, value.shape, value.stride(), kind.block_shape)
    return TYPES[kind], value


def launch(module, case: OpCase) -> None:
    seed = secrets.randbelow(2**31)
    print("inputs from seed", seed)
    before = case.inputs(torch.Generator().manual_seed(seed))
    after = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in before.items()}
    args = {name: argument(kind, after[name]) for name, kind in case.signature.items()}
    emu.launch(getattr(module, case.kernel), case.grid, args, seed=seed, cluster=case.cluster, threads=32 * case.warps)
    assert_right(case, before, after)


@pytest.mark.parametrize("case", [c for c in CASES if c.kernel not in IMPOSSIBLE], ids=lambda case: case.kernel)
def test_operation(module, case):
    launch(module, case)


@pytest.mark.parametrize("case", [c for c in CASES if c.kernel in IMPOSSIBLE], ids=lambda case: case.kernel)
def test_what_tle_cannot_do_is_reported(module, case):
    error, text = IMPOSSIBLE[case.kernel]
    with pytest.raises(error, match=text):
        launch(module, case)
