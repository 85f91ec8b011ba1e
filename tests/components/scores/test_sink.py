"""The sink's two links against a softmax with one more logit, from sinks that nobody feels to sinks that outweigh everything."""

import math

import pytest
import torch

from tle_attn.components.scores.sink import Sink
from tle_attn.spec import DType, Problem
from tle_attn.testing.blocks import check_block

SINKS = torch.tensor([-math.inf, -200.0, -3.0, 0.0, 2.5, 60.0, 500.0, -math.inf])
LOG2E = math.log2(math.e)


@pytest.mark.parametrize("dtype,exponent", [(DType.BF16, 0), (DType.FP8, 7)])
def test_denominator(target, dtype, exponent):
    """l carries 2**exponent; relative to a maximum m, the sink weighs exp(sink - m ln 2)."""

    def reference(l, m, head, sinks):
        return l.double() + torch.exp2(sinks.double()[head.long()] * LOG2E - m.double() + exponent)

    m = torch.tensor([3.0, -50.0, 0.0, 1.5, -2.0, 80.0, 700.0, 40.0])
    inputs = {"l": torch.rand(8) + 1, "m": m, "head": torch.arange(8), "sinks": SINKS}
    check_block(Sink(), "sink_denominator", problem=Problem(dtype=dtype), inputs=inputs, reference=reference, target=target, rms=1e-4)


def test_a_row_without_keys_weighs_the_sink_infinitely_or_nothing(target):
    def reference(l, sinks):
        return torch.where(sinks > -math.inf, math.inf, 0.0).double()

    for m in (-math.inf, -1.0e30):
        inputs = {"l": torch.zeros(8), "m": torch.full((8,), m), "head": torch.arange(8), "sinks": SINKS}
        check_block(Sink(), "sink_denominator", inputs=inputs, reference=reference, target=target)


@pytest.mark.parametrize("values", [torch.linspace(-20.0, 20.0, 8), torch.full((8,), -math.inf), torch.full((8,), 700.0)])
def test_log_sum(target, values):
    def reference(value, head, sinks):
        return torch.logaddexp2(value.double(), sinks.double()[head.long()] * LOG2E)

    check_block(Sink(), "sink_log_sum", inputs={"value": values, "head": torch.arange(8), "sinks": SINKS}, reference=reference, target=target)
