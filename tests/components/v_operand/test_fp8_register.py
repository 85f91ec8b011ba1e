"""FP8 register V: its two orders cancel, so that the product is V^T P^T; and each step alone."""

import pytest
import torch

from tests.components.products import product_rms
from tle_attn.components.v_operand.fp8_register import Fp8RegisterV
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Constant, DType, Problem
from tle_attn.testing.blocks import check_block
from tle_attn.testing.mini_kernel import mini_kernel, run_kernel

#: row d' of V^T holds head element d; column t' holds token t (the block's docstring)
D = torch.arange(128)
ROW_OF_D = 16 * (D >> 4) + 8 * (D & 1) + ((D >> 1) & 7)
T = torch.arange(64)
COLUMN_OF_T = T // 16 * 16 + 2 * (T % 16 & 7) + (T % 16 >> 3)

PRODUCT = """
@jit
def test(args):
    v_tile = alloc([TILE, HEAD_DIM], DTYPE)
    p_tile = alloc([COLUMNS, TILE], DTYPE)
    i, j = tile_index(TILE, HEAD_DIM, 16)
    smem_store(v_tile, load(args.v + (i * HEAD_DIM)[:, None] + j[None, :]))
    role_sync()
    t = mma_zeros(TILE, COLUMNS, DTYPE)
    v = take_v(v_tile)
    publish_p(p_tile, load(args.p + (rows(t) * COLUMNS)[:, None] + cols(t)[None, :]), 448.0)
    o = mma_zeros(HEAD_DIM, COLUMNS, DTYPE) + 1.0
    o = add_product(o, wgmma_wait(0, pv_product(v, p_tile, o)))
    d = head_dim_of(rows(o))
    store(args.o + (d * COLUMNS)[:, None] + cols(o)[None, :], o)
"""


@pytest.mark.parametrize("sums", ["fp32", "tensor_cores"])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_product_in_the_order_of_the_output(target, device, tokens, sums):
    """take_v, publish_p, pv_product, add_product and head_dim_of together are O^T + V^T P^T."""
    problem = Problem(dtype=DType.FP8, query_tokens=tokens)
    n = problem.columns
    v, p = torch.randn(64, 128).to(torch.float8_e4m3fn), torch.rand(64, n) * 16
    o = torch.full((128, n), float("nan"), device=device)
    kernel = mini_kernel(PRODUCT, Fp8RegisterV(sums=sums), problem=problem, arguments=[Argument("v", "*fp8", ""), Argument("p", "*f32", ""), Argument("o", "*f32", "")])
    run_kernel(kernel, {"v": v.to(device), "p": p.to(device), "o": o}, target=target)
    expected = 1 + v.double().T @ p.to(torch.float8_e4m3fn).double()
    assert (o.cpu().double() - expected).norm() / expected.norm() < product_rms(DType.FP8, target)


def test_transposed_tile(target, fp8):
    """Every byte once, at its place: the tile holds its own index modulo the values of e4m3."""
    codes = (torch.arange(64 * 128) * 7 % 120).to(torch.uint8).view(torch.float8_e4m3fn).view(64, 128)

    def reference(v_tile):
        expected = torch.zeros(128, 64)
        expected[ROW_OF_D[:, None], COLUMN_OF_T[None, :]] = v_tile.float().T
        return expected

    check_block(Fp8RegisterV(), "take_v", problem=fp8, inputs={"v_tile": codes}, reference=reference, target=target, rms=0.0)


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_publish(target, tokens):
    problem = Problem(dtype=DType.FP8, query_tokens=tokens)
    p = torch.rand(64, problem.columns) * 30
    p[41, 3] = 500.0  # saturates at 448

    def reference(p, limit):
        expected = torch.zeros(problem.columns, 64)
        expected[:, COLUMN_OF_T] = p.clamp(max=448.0).to(torch.float8_e4m3fn).float().T
        return (p > limit).any().int(), expected

    run = check_block(Fp8RegisterV(), "publish_p", problem=problem, inputs={"p": p, "limit": Constant(448.0)}, reference=reference, target=target, rms=0.0)
    assert run.outputs["over"] == 1


@pytest.mark.parametrize("valid", [1, 40, 63])
def test_clear(target, fp8, valid):
    v = torch.randn(64, 128).to(torch.float8_e4m3fn)
    v[valid:] = float("nan")

    def reference(v_tile, valid):
        return torch.where(torch.arange(64)[:, None] < valid, v_tile.float(), 0.0)

    check_block(Fp8RegisterV(), "clear_v", problem=fp8, inputs={"v_tile": v, "valid": valid}, reference=reference, target=target, rms=0.0)


@pytest.mark.parametrize("problem,message", [(Problem(), "cannot take bf16 tiles"), (Problem(dtype=DType.FP8, head_dim=256), "cannot take heads of 256 values")])
def test_what_it_does_not_take(problem, message):
    with pytest.raises(SpecError, match=message):
        Fp8RegisterV().check(problem)
