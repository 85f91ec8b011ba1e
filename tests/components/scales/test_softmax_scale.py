"""Softmax scale: the factor that turns dot products into base-2 logits."""

import pytest
import torch

from tle_attn.components.scales.softmax_scale import SoftmaxScale
from tle_attn.errors import SpecError
from tle_attn.spec import DType, Function, Port, Problem
from tle_attn.testing.blocks import check_block


@pytest.mark.parametrize("scale", [0.125, -0.5])
def test_factor(target, problem, query_factor_ports, scale):
    inputs = {"scale_log2": scale, "column": torch.arange(problem.columns), "seq": 0, "head": 0}
    check_block(SoftmaxScale(), "query_factor", problem=problem, inputs=inputs, ports=query_factor_ports(problem), target=target)


def test_fp8_needs_scales():
    with pytest.raises(SpecError, match="fp8 tensors come with scales"):
        SoftmaxScale().check(Problem(dtype=DType.FP8))


def test_factor_of_prefill(target):
    """One for all rows of the scores."""
    ports = Function("whole_factor", (Port("s", DType.F32, ("query", "key"), (64, 128), layout="mma"),), (Port("factor", DType.F32, ("query",), (64,)),))
    check_block(SoftmaxScale(), "whole_factor", inputs={"scale_log2": 0.37}, ports=ports, reference=lambda scale_log2: torch.full((64,), scale_log2), target=target)
