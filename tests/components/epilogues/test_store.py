"""Store epilogue: rows at their place in any strides, LSE in the base that was named, empty rows, and nothing else written."""

import math

import pytest
import torch

from tle_attn.components.epilogues.store import StoreEpilogue
from tle_attn.spec import Argument, DType, Problem
from tle_attn.testing.mini_kernel import mini_kernel, run_kernel

TEXT = """
@jit
def test(args):
    t = mma_zeros(HEAD_DIM, COLUMNS, DTYPE)
    row = cols(t)
    d = rows(t)
    keep = (row < ROWS)[None, :] & (d >= 0)[:, None]
    total = load(args.total + row)
    value = load(args.value + (d * COLUMNS)[:, None] + row[None, :])
    write_rows(args, value * inverse_of(total)[None, :], row[None, :], d[:, None], keep, args.seq, args.head)
    write_lse(args, load(args.top + row), total, row, row < ROWS, args.seq, args.head)
"""
KV_HEADS = 2


def run(problem: Problem, epilogue: StoreEpilogue, target: str, device: str, seq: int, head: int, pad: int = 0):
    """(value [d, n], sums [n], maxima [n]) that went in, and (out, lse) with everything else untouched."""
    n, d, heads = problem.columns, problem.head_dim, KV_HEADS * problem.group
    value, total, top = torch.randn(d, n), torch.rand(n) + 0.1, 5 * torch.randn(n)
    total[1], value[:, 1], top[1] = 0.0, 0.0, -1e30
    dtype = torch.bfloat16 if epilogue.dtype is DType.BF16 else torch.float32
    out = torch.full((3 * problem.query_tokens, heads + pad, d), math.nan, device=device).to(dtype)[:, :heads]
    lse = torch.full((3 * problem.query_tokens, heads), math.nan, device=device)
    names = {"value": "*f32", "total": "*f32", "top": "*f32", "seq": "i32", "head": "i32"}
    kernel = mini_kernel(TEXT, epilogue, problem=problem, arguments=[Argument(name, kind, "") for name, kind in names.items()])
    values = {
        "value": value.to(device),
        "total": total.to(device),
        "seq": seq,
        "head": head,
        "out": out,
        "out_token_stride": out.stride(0),
        "out_head_stride": out.stride(1),
    }
    if epilogue.lse != "none":
        values |= {"top": top.to(device), "lse": lse, "kv_heads": KV_HEADS}
    run_kernel(kernel, values, target=target)
    return value.double(), total.double(), top.double(), out.cpu(), lse.cpu()


def own_rows(problem: Problem, seq: int, head: int) -> tuple[slice, slice]:
    t, g = problem.query_tokens, problem.group
    return slice(seq * t, (seq + 1) * t), slice(head * g, (head + 1) * g)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
@pytest.mark.parametrize("seq,head,pad", [(0, 0, 0), (2, 1, 3)])
def test_rows(target, device, problem, dtype, seq, head, pad):
    value, total, _, out, _ = run(problem, StoreEpilogue(dtype=dtype), target, device, seq, head, pad)
    rows = own_rows(problem, seq, head)
    expected = torch.where(total > 0, value / total, 0.0).T[: problem.rows].reshape(problem.query_tokens, problem.group, problem.head_dim)
    error = (out[rows].double() - expected).norm() / expected.norm()
    assert error < (3e-3 if dtype is DType.BF16 else 1e-6)
    assert not out[rows].reshape(problem.rows, -1)[1].any(), "a row without a key is exactly zero"
    out[rows] = math.nan
    assert torch.isnan(out).all(), "nothing else is written"


@pytest.mark.parametrize("base,unit", [("e", math.log(2.0)), ("2", 1.0)])
@pytest.mark.parametrize("seq,head", [(0, 1), (2, 0)])
def test_lse(target, device, problem, base, unit, seq, head):
    _, total, top, _, lse = run(problem, StoreEpilogue(lse=base), target, device, seq, head)
    rows = own_rows(problem, seq, head)
    expected = torch.where(total > 0, (top + torch.log2(total)) * unit, -torch.inf)[: problem.rows].view(problem.query_tokens, problem.group)
    got = lse[rows].double()
    assert torch.equal(torch.isinf(got), torch.isinf(expected)) and (got - expected).nan_to_num(0.0).abs().max() < 2e-5
    lse[rows] = math.nan
    assert torch.isnan(lse).all(), "nothing else is written"


def test_without_lse_nothing_of_it_is_left():
    kernel = mini_kernel(
        TEXT, StoreEpilogue(), arguments=[Argument(n, "*f32", "") for n in ("value", "total", "top")] + [Argument(n, "i32", "") for n in ("seq", "head")]
    )
    import tle_attn

    text = tle_attn.generate(kernel, "cpu").text
    assert "lse" not in text.split("def inverse_of")[1] and "log2" not in text
