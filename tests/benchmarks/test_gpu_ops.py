"""The comparison of tests/gpu/ops.py on a machine without a GPU: the emulation stands in for it."""

import copy

import pytest
import torch

from tests.gpu import ops

KERNELS = ("k_masked", "k_wgmma_register")


@pytest.mark.parametrize("kernel", KERNELS)
def test_right(monkeypatch, kernel):
    monkeypatch.setattr(ops, "on_gpu", lambda case, before: ops.emulated(case, before, 5))
    row = ops.compare(kernel)
    assert row["status"] == "right"
    assert row["gpu_vs_emulation"] <= row["allowed"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_one_wrong_element(monkeypatch, kernel, value):
    def spoiled(case, before):
        after = ops.emulated(case, before, 0)
        out = after["out"].view(-1)
        out[7] = out[7] + 1 if value == 1.0 or not out.is_floating_point() else torch.nan
        return after

    monkeypatch.setattr(ops, "on_gpu", spoiled)
    row = ops.compare(kernel)
    assert row["status"] == "wrong"
    assert row["emulation_vs_float64"] <= row["allowed"] < row["gpu_vs_float64"]


def test_inputs_are_left_alone():
    case = ops.BY_NAME["k_masked"]
    before = case.inputs(torch.Generator().manual_seed(0))
    kept = copy.deepcopy(before)
    ops.emulated(case, before, 0)
    assert torch.equal(before["out"], kept["out"])


def test_a_process_that_fails_gives_a_row(monkeypatch):
    monkeypatch.setattr(ops.sys, "executable", "false")
    row = ops.in_own_process("k_masked")
    assert row["status"] == "error"
