"""Where operators run is chosen, not found out."""

import pytest
import torch

from tle_attn.errors import TargetUnavailable
from tle_attn.ops.emulation import emulate, emulating, target_of

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("TLE_ATTN_EMULATE", raising=False)


def test_gpu_tensors_never_run_in_emulation():
    assert target_of(GPU) == "gluon"
    with emulate():
        assert target_of(GPU) == "gluon"


def test_cpu_tensors_need_the_choice():
    with pytest.raises(TargetUnavailable, match="these tensors are on cpu"):
        target_of(CPU)
    with emulate():
        assert target_of(CPU) == "cpu"
    assert not emulating()


def test_choices_nest_and_end_with_an_error():
    with pytest.raises(ZeroDivisionError), emulate():
        with emulate():
            pass
        assert emulating()
        1 / 0
    assert not emulating()


@pytest.mark.parametrize("value,chosen", [("1", True), ("0", False), ("", False)])
def test_variable(monkeypatch, value, chosen):
    monkeypatch.setenv("TLE_ATTN_EMULATE", value)
    assert emulating() is chosen
