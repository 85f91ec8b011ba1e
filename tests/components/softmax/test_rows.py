"""Row softmax: its functions against the definition of a step, a chain of steps against softmax, rows that see nothing, and the scale of P."""

import pytest
import torch

from tle_attn.components.softmax.rows import RowSoftmax
from tle_attn.errors import NumericError
from tle_attn.spec import Argument, Constant, DType, Problem
from tle_attn.testing.blocks import check_block
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

NINF = float("-inf")

#: a chain of steps as the mainloop makes them, without its products: tiles [n, 64, 128]
TEXT = """
@jit
def test(args):
    s = mma_zeros(64, TILE, DTYPE)
    at = (rows(s) * TILE)[:, None] + cols(s)[None, :]
    factor = load(args.factor + rows(s))
    l = thread_sums(s)
    m = full_rows(s, float("-inf"))
    for i in range(args.count):
        tile = load(args.s + i * 64 * TILE + at)
        larger = larger_maximum(tile, m)
        p, alpha = weights(tile, m, larger, factor, MASKED)
        l = add_weights(l, alpha, p)
        m = larger
        store(args.p + i * 64 * TILE + at, p)
        store(args.alpha + i * 64 + rows(p), alpha)
    store(args.m + rows(s), m)
    total = row_sums(l)
    store(args.l + rows(l), total)
"""


def steps(tiles: torch.Tensor, factor: torch.Tensor, block: RowSoftmax, problem: Problem, target: str, device: str, *, masked: bool = True) -> dict[str, torch.Tensor]:
    """p, alpha, m and l of the device text after each step or at the end."""
    n = len(tiles)
    outputs = {"p": torch.empty(n, 64, 128), "alpha": torch.empty(n, 64), "m": torch.empty(64), "l": torch.empty(64)}
    outputs = {name: torch.full_like(t, float("nan")).to(device) for name, t in outputs.items()}
    arguments = [Argument(name, "*f32", "") for name in ("s", "factor", *outputs)]
    constants = {"MASKED": Constant(masked, "tiles hold -inf")}
    kernel = mini_kernel(TEXT, block, problem=problem, arguments=[*arguments, Argument("count", "i32", "tiles")], constants=constants, companions=prefill_companions(problem))
    run_kernel(kernel, {"s": tiles.to(device), "factor": factor.to(device), "count": n, **outputs}, target=target)
    return {name: t.cpu().double() for name, t in outputs.items()}


def expected(tiles: torch.Tensor, factor: torch.Tensor, block: RowSoftmax, problem: Problem) -> dict[str, torch.Tensor]:
    m, l, ps, alphas = torch.full((64,), NINF), torch.zeros(64), [], []
    for s in tiles:
        p, m, l, alpha = block.reference(s, m, l, factor, problem)
        ps.append(p)
        alphas.append(alpha)
    return {"p": torch.stack(ps), "alpha": torch.stack(alphas), "m": m, "l": l}


def compare(got: dict[str, torch.Tensor], ref: dict[str, torch.Tensor]) -> None:
    for name, value in ref.items():
        assert torch.equal(torch.isfinite(got[name]), torch.isfinite(value)), name
        error = (got[name] - value).nan_to_num(0.0).norm() / value[torch.isfinite(value)].norm().clamp(min=1e-30)
        assert error < 1e-5, f"{name}: {error}"


def factors() -> torch.Tensor:
    """Of rows: different ones, all positive."""
    return torch.rand(64) * 0.3 + 0.01


@pytest.mark.parametrize("drift", [0.0, 20.0, -20.0, 300.0])
@pytest.mark.parametrize("masked", [True, False])
def test_a_chain_of_steps(target, device, drift, masked):
    """Maxima that rise and fall from tile to tile; with the text for masked tiles and without."""
    tiles = torch.randn(4, 64, 128) * 10 + drift * torch.arange(4)[:, None, None]
    factor, problem = factors(), Problem()
    got = steps(tiles, factor, RowSoftmax(), problem, target, device, masked=masked)
    compare(got, expected(tiles, factor, RowSoftmax(), problem))
    x = (tiles.permute(1, 0, 2).reshape(64, -1).double() * factor.double()[:, None]) * torch.log(torch.tensor(2.0, dtype=torch.float64))
    lse = torch.logsumexp(x, 1) / torch.log(torch.tensor(2.0, dtype=torch.float64))
    assert ((got["m"] * factor + torch.log2(got["l"])) - lse).abs().max() < 2e-5, "the LSE of all keys"


def test_masked_keys(target, device):
    """-inf in single scores, in the rest of a row from some key on, and in all of a tile but the first."""
    tiles = torch.randn(3, 64, 128) * 5
    tiles[torch.rand(tiles.shape) < 0.3] = NINF
    tiles[0, torch.arange(64)[:, None] * 2 < torch.arange(128)[None, :]] = NINF
    tiles[0, :, 0] = 1.0
    tiles[1] = NINF
    factor, problem = factors(), Problem()
    got = steps(tiles, factor, RowSoftmax(), problem, target, device)
    compare(got, expected(tiles, factor, RowSoftmax(), problem))
    assert not got["p"][tiles == NINF].any(), "a masked key weighs exactly nothing"
    assert (got["alpha"][1] == 1.0).all(), "a tile without a key changes nothing"


def test_rows_that_see_nothing(target, device):
    """No key in the first tile, in the first two, or in any: nothing but zeros, and no NaN once keys come."""
    tiles = torch.randn(3, 64, 128) * 5
    tiles[0, :48] = tiles[1, :32] = tiles[2, :16] = NINF
    factor, problem = factors(), Problem()
    got = steps(tiles, factor, RowSoftmax(), problem, target, device)
    compare(got, expected(tiles, factor, RowSoftmax(), problem))
    assert (got["m"][:16] == NINF).all() and not got["l"][:16].any() and not got["p"][:, :16].any()


@pytest.mark.parametrize("dtype,p_exponent,exponent", [(DType.BF16, None, 0), (DType.FP8, None, 8), (DType.FP8, 3, 3), (DType.BF16, 20, 20)])
def test_p_and_the_sums_carry_the_exponent(target, device, dtype, p_exponent, exponent):
    problem, block = Problem(dtype=dtype), RowSoftmax(p_exponent=p_exponent)
    tiles, factor = torch.randn(2, 64, 128) * 5, factors()
    got = steps(tiles, factor, block, problem, target, device)
    compare(got, expected(tiles, factor, block, problem))
    plain = expected(tiles, factor, RowSoftmax(p_exponent=0), problem)
    assert ((got["l"] / plain["l"] / 2.0**exponent - 1).abs() < 1e-5).all()
    assert torch.equal(got["m"], plain["m"]), "the maximum does not"
    assert got["p"][0].amax(1).sub(2.0**exponent).abs().max() < 2.0**exponent * 1e-5, "the maximum of the first tile"


def test_larger_maximum(target):
    s = torch.randn(64, 128)
    s[3] = NINF
    m = torch.randn(64)
    m[:8] = NINF
    run = check_block(RowSoftmax(), "larger_maximum", inputs={"s": s, "m": m}, reference=lambda s, m: torch.maximum(m, s.amax(1)), companions=prefill_companions(Problem()), target=target, rms=0.0)
    assert run.outputs["m"][3] == NINF


@pytest.mark.parametrize("dtype,exponent,fits", [(DType.FP8, 8, True), (DType.FP8, 9, False), (DType.BF16, 20, True), (DType.BF16, 21, False), (DType.FP8, None, True), (DType.BF16, None, True)])
def test_p_fits_the_element_type(dtype, exponent, fits):
    """e4m3 ends at 448 < 2**9."""
    block = RowSoftmax(p_exponent=exponent)
    if fits:
        block.check(Problem(dtype=dtype))
    else:
        with pytest.raises(NumericError, match="leaves the range of"):
            block.check(Problem(dtype=dtype))
