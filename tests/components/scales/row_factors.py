"""Factors of query rows of prefill, from scales [batch, query heads, tokens] that are NaN where there is no token."""

import torch

from tle_attn.spec import Argument, Block, DType, Problem
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel
from tle_attn.testing.paged import moved

TEXT = """
@jit
def test(args):
    row = args.row0 + vec_index(64)
    store(args.factors + vec_index(64), row_factor(args, args.seq, row, args.q_len, args.q_head))
"""


def row_factors(block: Block, scales: torch.Tensor, place: tuple[int, int, int, int], target: str, device: str, **values) -> torch.Tensor:
    """Factors of 64 rows of (sequence, first row, queries, query head)."""
    problem = Problem(dtype=DType.FP8)
    names = ("seq", "row0", "q_len", "q_head")
    arguments = [*(Argument(n, "i32", "") for n in names), Argument("factors", "*f32", "")]
    kernel = mini_kernel(TEXT, block, problem=problem, arguments=arguments, companions=prefill_companions(problem))
    factors = torch.full((64,), float("nan"), device=device)
    given = {"q_scale": moved(scales, device), "q_scale_batch_stride": scales.stride(0), "q_scale_head_stride": scales.stride(1), "factors": factors}
    run_kernel(kernel, {**given, **dict(zip(names, place)), **values}, target=target)
    return factors.cpu()


def scales_of(lengths: tuple[int, ...], heads: int = 3) -> torch.Tensor:
    """Random scales, NaN behind each sequence's tokens, in a view with room between its rows."""
    scales = torch.full((len(lengths), heads, 384 + 5), float("nan"))[:, :, :384]
    for b, length in enumerate(lengths):
        scales[b, :, :length] = torch.rand(heads, length) + 0.5
    return scales


def expected(scales: torch.Tensor, place: tuple[int, int, int, int], scale: float) -> torch.Tensor:
    seq, row0, q_len, q_head = place
    found = torch.zeros(64, dtype=torch.float64)
    there = scales[seq, q_head, row0:q_len][:64].double()
    found[: len(there)] = there * scale
    return found
