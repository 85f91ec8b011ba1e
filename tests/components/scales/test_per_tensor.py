"""Per-tensor fp8 scales: factors of query columns, and the output in units of V."""

import pytest
import torch

from tests.components.scales.row_factors import expected, row_factors, scales_of
from tle_attn.components.scales.per_tensor import PerTensor
from tle_attn.errors import SpecError
from tle_attn.spec import DType, Function, Port, Problem
from tle_attn.testing.blocks import check_block


@pytest.mark.parametrize("tokens,group", [(1, 8), (2, 5), (3, 8)])
def test_query_factor(target, query_factor_ports, tokens, group):
    """The scale of the right token and head; padding columns read none and get 0."""
    problem = Problem(dtype=DType.FP8, query_tokens=tokens, group=group)
    q_scale = torch.rand(3 * tokens, 2 * group + 3)[:, : 2 * group] + 0.5
    seq, head = 2, 1

    def reference(q_scale, k_scale):
        factor = torch.zeros(problem.columns, dtype=torch.float64)
        factor[: problem.rows] = q_scale[seq * tokens : (seq + 1) * tokens, head * group : (head + 1) * group].reshape(-1).double() * k_scale.double() * 0.25
        return factor

    inputs = {
        "q_scale": q_scale, "q_scale_stride": q_scale.stride(0), "k_scale": torch.tensor([3.5]), "scale_log2": 0.25, "column": torch.arange(problem.columns), "seq": seq, "head": head,
    }  # fmt: skip
    check_block(PerTensor(), "query_factor", problem=problem, inputs=inputs, ports=query_factor_ports(problem), reference=reference, target=target)


def test_output(target, fp8):
    inputs = {"unit": 2.5, "v_scale": torch.tensor([0.37]), "head": 1}
    check_block(PerTensor(), "value_scale", problem=fp8, inputs=inputs, reference=lambda v_scale: 2.5 * v_scale[0].double(), target=target)


def test_bf16_needs_no_scales():
    with pytest.raises(SpecError, match="per_tensor scales are for fp8 tensors"):
        PerTensor().check(Problem())


def test_value_factor_of_prefill(target):
    ports = Function("value_factor", (), (Port("factor", DType.F32, (), ()),))
    inputs = {"v_scale": torch.tensor([1.7]), "head": 1}
    check_block(PerTensor(), "value_factor", problem=Problem(dtype=DType.FP8), inputs=inputs, ports=ports, reference=lambda v_scale: v_scale[0], target=target)


@pytest.mark.parametrize("place", [(0, 0, 200, 0), (1, 64, 130, 2), (1, 128, 130, 1), (0, 192, 200, 1), (1, 192, 130, 0)])
def test_row_factors_of_prefill(target, device, place):
    """Of the sequence's own head and rows; rows past its end read nothing and have 0."""
    scales, k_scale = scales_of((200, 130)), torch.tensor([0.37])
    got = row_factors(PerTensor(), scales, place, target, device, k_scale=k_scale.to(device), scale_log2=0.25)
    torch.testing.assert_close(got.double(), expected(scales, place, 0.25 * k_scale.double().item()), rtol=1e-6, atol=0.0)
