"""TMA-store epilogue of prefill: rows at their place, nothing else written, a tile of shared memory that is written again when it has been read."""

import math

import pytest
import torch

import tle_attn
from tle_attn.codegen import generate
from tle_attn.components.epilogues.store_tma import StoreTma
from tle_attn.emu import EmulationError
from tle_attn.random_problems import prefill_problem_for
from tle_attn.runtime.executors import import_generated
from tle_attn.spec import Argument, DType, Problem
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel
from tle_attn.verify import run_one, tolerance

TEXT = """
@jit
def test(args):
    staged = alloc([64, HEAD_DIM], OUT_DTYPE)
    o = mma_zeros(64, HEAD_DIM, DTYPE)
    s = mma_zeros(64, TILE, DTYPE)
    factor = load(args.factor + rows(s))
    for i in range(args.count):
        value = load(args.value + ((i * 64 + rows(o)) * HEAD_DIM)[:, None] + cols(o)[None, :])
        send_rows(args, staged, value, factor, args.row + 64 * i, i % 3)
    wait_for_rows()
"""
#: sequences with whole tiles of 64 rows and without, one that begins in the middle of a tile, none
PAIRS = ((200, 389), (0, 5), (64, 64), (70, 40), (3, 0), (128, 256), (130, 300))


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_rows(target, device, seed, dtype, head_dim):
    """Tile after tile through one piece of shared memory, into a view with room between its heads."""
    count, row, heads = 5, 7, 3
    problem = Problem(head_dim=head_dim)
    value, factor = torch.randn(count * 64, head_dim), torch.rand(64) + 0.1
    out = torch.full((row + count * 64 + 9, heads + 1, head_dim), math.nan).to(device, getattr(torch, dtype.torch_name))[:, :heads]
    arguments = [Argument("value", "*f32", ""), Argument("factor", "*f32", ""), Argument("row", "i32", ""), Argument("count", "i32", "")]
    kernel = mini_kernel(TEXT, StoreTma(dtype=dtype), problem=problem, arguments=arguments, companions=prefill_companions(problem))
    run_kernel(kernel, {"value": value.to(device), "factor": factor.to(device), "row": row, "count": count, "out_desc": out.permute(1, 0, 2)}, target=target, seed=seed)
    got, expected = out.cpu().double(), value.double() * factor.double().repeat(count)[:, None]
    for i in range(count):
        mine = got[row + i * 64 : row + (i + 1) * 64, i % heads]
        wanted = expected[i * 64 : (i + 1) * 64]
        assert (mine - wanted).norm() <= (3e-3 if dtype is DType.BF16 else 1e-6) * wanted.norm()
        mine.fill_(math.nan)
    assert torch.isnan(got).all(), "nothing else is written"


@pytest.mark.parametrize("recipe", ["hy3/prefill_bf16", "hy3/prefill_fp8_per_token_block_mask", "variants/prefill_bf16_d96", "variants/prefill_bf16_f32_out"])
def test_kernels(target, seed, recipe):
    kernel = tle_attn.load(recipe).set({"epilogue.block": "store_tma", "epilogue.lse": "e", "problem.group": 2}).kernel()
    _, failure = run_one(kernel, target, prefill_problem_for(kernel, PAIRS, seed=seed, padding_rows=3), tolerance(kernel)[0], seed)
    assert failure is None, failure


def test_a_tile_is_not_written_before_it_was_read(tmp_path):
    """Without the wait the emulation reports that a store still reads the tile."""
    kernel = tle_attn.load("hy3/prefill_bf16").set({"epilogue.block": "store_tma", "problem.group": 2}).kernel()
    text = generate(kernel, "cpu").text
    assert text.count("    tma_store_wait()\n") == 1
    file = tmp_path / "no_wait.py"
    file.write_text(text.replace("    tma_store_wait()\n", "    pass\n"))
    problem = prefill_problem_for(kernel, ((256, 256),) * 3)
    plan = tle_attn.plan(kernel, **problem.geometry, target="cpu")
    plan.executor.SMS, plan.executor.module = 1, import_generated(file)
    with pytest.raises(EmulationError, match="o_smem"):
        plan.run(**problem.inputs)
