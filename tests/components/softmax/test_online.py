"""Online softmax: one step against its definition, a chain of steps against softmax, and the contract on the scale of P."""

import pytest
import torch

from tle_attn.components.softmax.online import OnlineSoftmax
from tle_attn.components.v_operand.direct import DirectV
from tle_attn.errors import NumericError
from tle_attn.spec import DType, Problem
from tle_attn.testing.blocks import BlockTest, check_block


def state(problem: Problem, m: float = 0.0) -> dict[str, torch.Tensor]:
    """Row sums and outputs are sums of powers, so positive and of moderate size."""
    n, d = problem.columns, problem.head_dim
    return {"m": torch.full((n,), m), "l": torch.rand(64, n), "o": torch.randn(d, n)}


@pytest.mark.parametrize("maximum", ["lazy", "exact"])
def test_a_step_within_the_limit(target, problem, maximum):
    s = -8.0 * torch.rand(64, problem.columns)
    run = check_block(OnlineSoftmax(maximum=maximum), "softmax_step", problem=problem, inputs={"s": s, **state(problem)}, target=target)
    assert (run.outputs["m"] == 0.0).all(), "the reference stays"


@pytest.mark.parametrize("maximum,jump", [("lazy", 21.0), ("exact", 0.5), ("exact", 30.0)])
def test_a_step_that_moves_the_reference(target, problem, maximum, jump):
    s = -4.0 * torch.rand(64, problem.columns)
    s[17, 2] = jump
    run = check_block(OnlineSoftmax(maximum=maximum), "softmax_step", problem=problem, inputs={"s": s, **state(problem)}, target=target)
    assert run.outputs["m"][2] == jump and (run.outputs["m"][:2] == 0.0).all()


def test_a_lazy_reference_stays_below_the_limit(target):
    s = torch.full((64, 8), 19.9)
    run = check_block(OnlineSoftmax(), "softmax_step", inputs={"s": s, **state(Problem())}, target=target)
    assert (run.outputs["m"] == 0.0).all()


def test_masked_keys_weigh_nothing(target):
    s = torch.randn(64, 8)
    s[40:] = s[:, 3] = float("-inf")
    run = check_block(OnlineSoftmax(), "softmax_step", inputs={"s": s, **state(Problem(), m=1.0)}, target=target)
    assert not run.outputs["p_tile"][3].any() and not run.outputs["p_tile"][:, 40:].any()


def test_first_reference_is_the_maximum_and_finite(target):
    s = torch.randn(64, 8)
    s[:, 5] = float("-inf")
    check_block(OnlineSoftmax(), "first_reference", inputs={"s": s}, reference=lambda s: s.amax(0).clamp(min=-1e30), target=target)


@pytest.mark.parametrize("maximum", ["lazy", "exact"])
@pytest.mark.parametrize("drift", [0.0, 6.0, -6.0, 40.0])
def test_a_chain_of_steps_is_softmax(maximum, drift):
    """Row sums and maxima after several tiles, whatever the reference was on the way; the first tile may be masked."""
    problem, block = Problem(query_tokens=2), OnlineSoftmax(maximum=maximum)
    tiles = [torch.randn(64, 16) * 3 + drift * i for i in range(4)]
    tiles[0][:, 1] = float("-inf")
    m = tiles[0].amax(0).clamp(min=-1e30)
    l, o = torch.zeros(64, 16), torch.zeros(128, 16)
    for seed, s in enumerate(tiles):
        outputs, _ = BlockTest(block=block, function="softmax_step", problem=problem, inputs={"s": s, "m": m, "l": l, "o": o}).run(seed=seed)
        m, l, o = outputs["m"], outputs["l"], outputs["o"]
    lse = m.double() + torch.log2(l.double().sum(0))
    exact = torch.logsumexp(torch.cat(tiles).double() * torch.log(torch.tensor(2.0)), 0) / torch.log(torch.tensor(2.0))
    assert (lse - exact).abs().max() < 1e-5


class TestRangeOfP:
    @pytest.mark.parametrize("dtype,maximum,exponent,fits", [
        (DType.FP8, "exact", 8, True), (DType.FP8, "exact", 9, False), (DType.FP8, "lazy", 7, True), (DType.FP8, "lazy", 8, False),
        (DType.FP8, "lazy", None, True), (DType.FP8, "exact", None, True), (DType.BF16, "lazy", None, True), (DType.BF16, "exact", 20, True), (DType.BF16, "exact", 21, False),
    ])  # fmt: skip
    def test_p_scale_times_headroom_fits_the_element_type(self, dtype, maximum, exponent, fits):
        """e4m3 ends at 448 < 2**9; a lazy maximum needs one more binary order."""
        block, problem = OnlineSoftmax(maximum=maximum, p_exponent=exponent), Problem(dtype=dtype)
        if fits:
            block.check(problem)
        else:
            with pytest.raises(NumericError, match="leaves the range of"):
                block.check(problem)

    def test_fp8_p_carries_the_exponent(self, target, fp8):
        """The state does, and its sums count P as rounded; P itself is compared in the tests of the V operand, which has an order of its own."""
        s = -4.0 * torch.rand(64, 8)
        block = OnlineSoftmax(p_exponent=4)
        outputs, given = BlockTest(block=block, function="softmax_step", problem=fp8, inputs={"s": s, **state(fp8)}).run(target=target)
        expected = dict(zip("mlo", block.reference(*(given[name] for name in "smlo"), fp8)))
        # a P beside the middle of two e4m3 values may be rounded either way
        for name, tolerance in (("m", 0.0), ("l", 1e-2), ("o", 1e-6)):
            error = outputs[name].double() - expected[name]
            assert error.norm() <= tolerance * expected[name].norm(), name
        assert 2**3 < outputs["p_tile"].max() <= 2**4


def test_direct_v_is_the_companion():
    """P is published by the V operand that the kernel uses; the decode family's default is taken if none is given."""
    kernel = BlockTest(block=OnlineSoftmax(), function="softmax_step", problem=Problem()).kernel
    assert [type(b) for _, b in kernel.blocks][:2] == [OnlineSoftmax, DirectV]
