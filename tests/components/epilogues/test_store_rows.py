"""Masked-store epilogue of prefill: rows of one head at their place, the LSE in the base that was named, empty rows, and nothing else written."""

import math

import pytest
import torch

from tle_attn.components.epilogues.store_rows import StoreRows
from tle_attn.spec import Argument, Constant, DType, Problem
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

TEXT = """
@jit
def test(args):
    o = mma_zeros(64, HEAD_DIM, DTYPE)
    s = mma_zeros(64, TILE, DTYPE)
    value = load(args.value + (rows(o) * HEAD_DIM)[:, None] + cols(o)[None, :])
    total = load(args.total + rows(s))
    store_rows(args, value, inverse_of_rows(total), args.q_start, args.row0, args.q_len, args.q_head)
    store_row_lse(args, load(args.top + rows(s)), total, load(args.factor + rows(s)), args.q_start, args.row0, args.q_len, args.q_head)
"""
NUMBERS = ("q_start", "row0", "q_len", "q_head")
KV_HEADS = 2
#: (first row of the sequence in q, first row of the 64 in the sequence, queries, query head): all rows there, some, one, none
PLACES = [(0, 0, 64, 0), (10, 64, 100, 5), (3, 128, 129, 15), (40, 64, 60, 1)]


def run(problem: Problem, block: StoreRows, place: tuple[int, ...], target: str, device: str, *, pad: int = 0, exponent: int = 0):
    """What went in, and (out, lse) whose other elements stay NaN."""
    d, heads = problem.head_dim, KV_HEADS * problem.group
    value, total, top, factor = torch.randn(64, d), torch.rand(64) + 0.1, 5 * torch.randn(64), torch.rand(64) + 0.1
    total[[0, 37]], value[[0, 37]], top[[0, 37]] = 0.0, 0.0, -math.inf
    dtype = getattr(torch, block.dtype.torch_name)
    out = torch.full((200, heads + pad, d), math.nan).to(device, dtype)[:, :heads]
    lse = torch.full((200, heads), math.nan, device=device)
    tensors = {"value": value, "total": total} | ({"top": top, "factor": factor} if block.lse != "none" else {})
    arguments = [*(Argument(n, "*f32", "") for n in ("value", "total", "top", "factor")), *(Argument(n, "i32", "") for n in NUMBERS)]
    constants = {"P_EXPONENT": Constant(float(exponent), "power of two that the sums carry")}
    kernel = mini_kernel(TEXT, block, problem=problem, arguments=arguments, constants=constants, companions=prefill_companions(problem))
    values = {name: t.to(device) for name, t in tensors.items()} | dict(zip(NUMBERS, place)) | {"out": out, "out_token_stride": out.stride(0), "out_head_stride": out.stride(1)}
    if block.lse != "none":
        values |= {"lse": lse, "kv_heads": KV_HEADS}
    run_kernel(kernel, values, target=target)
    return (value.double(), total.double(), top.double(), factor.double()), out.cpu(), lse.cpu()


def own(place: tuple[int, ...]) -> tuple[slice, int, int]:
    """Rows of the output that the 64 rows own, the head, and how many they are."""
    q_start, row0, q_len, q_head = place
    count = max(0, min(64, q_len - row0))
    return slice(q_start + row0, q_start + row0 + count), q_head, count


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
@pytest.mark.parametrize("empty", ["zero", "nan"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("head_dim,pad", [(128, 0), (64, 3)])
def test_rows(target, device, dtype, empty, place, head_dim, pad):
    """Into a view with room between its rows; rows past the sequence's end belong to others and stay."""
    (value, total, _, _), out, _ = run(Problem(head_dim=head_dim), StoreRows(dtype=dtype, empty_row=empty), place, target, device, pad=pad)
    rows, head, count = own(place)
    got, expected = out[rows, head].double(), (value / total[:, None])[:count]
    if empty == "zero":
        expected = expected.nan_to_num(0.0)
        assert not got[total[:count] == 0].any(), "a row without a key is exactly zero"
    assert torch.equal(torch.isnan(got), torch.isnan(expected))
    assert (got - expected).nan_to_num(0.0).norm() <= (3e-3 if dtype is DType.BF16 else 1e-6) * expected.nan_to_num(0.0).norm()
    out[rows, head] = math.nan
    assert torch.isnan(out).all(), "nothing else is written"


@pytest.mark.parametrize("base,unit", [("e", math.log(2.0)), ("2", 1.0)])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype,exponent", [(DType.BF16, 0), (DType.FP8, 8)])
def test_lse(target, device, base, unit, place, dtype, exponent):
    """Of rows whose maxima are in units of the scores and whose sums carry P's exponent; -inf for rows without a key."""
    (_, total, top, factor), _, lse = run(Problem(dtype=dtype), StoreRows(lse=base), place, target, device, exponent=exponent)
    rows, head, count = own(place)
    expected = torch.where(total > 0, (top * factor + torch.log2(total) - exponent) * unit, -torch.inf)[:count]
    got = lse[rows, head].double()
    assert torch.equal(torch.isinf(got), torch.isinf(expected)) and (got - expected).nan_to_num(0.0).abs().sum() < 2e-5 * max(count, 1)
    lse[rows, head] = math.nan
    assert torch.isnan(lse).all(), "nothing else is written"
