"""Small-M core: query rows in shared memory, scores of a key tile."""

import pytest
import torch

from tests.components.products import product_rms
from tle_attn.components.cores.small_m import SmallM
from tle_attn.errors import SpecError
from tle_attn.spec import DType, Problem
from tle_attn.testing.blocks import check_block


def test_query_rows_fill_at_most_64_columns():
    SmallM().check(Problem(query_tokens=2, group=32))
    with pytest.raises(SpecError, match="3 query tokens x 22 heads are 66 query rows"):
        SmallM().check(Problem(query_tokens=3, group=22))


def test_scores(target, problem, seed):
    check_block(SmallM(), "qk_product", problem=problem, target=target, seed=seed)


def test_scores_of_fp8(target, fp8, seed):
    check_block(SmallM(), "qk_product", problem=fp8, target=target, seed=seed, rms=product_rms(fp8.dtype, target))


def queries(problem: Problem, sequences: int, heads: int, extra_heads: int = 0) -> torch.Tensor:
    dtype = torch.float8_e4m3fn if problem.dtype is DType.FP8 else torch.bfloat16
    wide = torch.randn(sequences * problem.query_tokens, problem.group * heads + extra_heads, problem.head_dim).to(dtype)
    return wide[:, : problem.group * heads]


def expected(q: torch.Tensor, problem: Problem, seq: int, head: int) -> torch.Tensor:
    """Row r is token r // group, head r % group of the group; rows past the last query are zero."""
    t, g = problem.query_tokens, problem.group
    tile = torch.zeros(problem.columns, problem.head_dim)
    tile[: problem.rows] = q[seq * t : (seq + 1) * t, head * g : (head + 1) * g].float().reshape(problem.rows, problem.head_dim)
    return tile


def test_query_rows(target, problem):
    q = queries(problem, 3, 2, extra_heads=4)
    for seq, head in ((0, 0), (2, 1)):
        inputs = {"q": q, "q_token_stride": q.stride(0), "q_head_stride": q.stride(1), "seq": seq, "head": head}
        check_block(SmallM(), "load_queries", problem=problem, inputs=inputs, reference=lambda q: expected(q.cpu(), problem, seq, head), target=target, rms=0.0)


def test_query_rows_of_fp8(target, fp8):
    q = queries(fp8, 2, 1)
    inputs = {"q": q, "q_token_stride": q.stride(0), "q_head_stride": q.stride(1), "seq": 1, "head": 0}
    check_block(SmallM(), "load_queries", problem=fp8, inputs=inputs, reference=lambda q: expected(q.cpu(), fp8, 1, 0), target=target, rms=0.0)
