"""Problems as the tests of hpc-ops make them, and calls as they make them: the data, tolerances and arguments of its decode grids.

Scores of these problems are small, and scales may be negative; pages hold random numbers past a request's last token.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

import tle_attn
from tle_attn.compat import hpc_ops as hpc
from tle_attn.ops import plans
from tle_attn.spec import Kernel
from tle_attn.testing import DecodeProblem, compare
from tle_attn.verify import tolerance

HEAD_DIM = 128
PAGE = 64
#: absolute error that its tests allow, and the min_process_len that they assign tasks with, by quant type (None: bf16)
ATOL = {None: 0.016, 0: 0.1, 1: 0.2}
MIN_PROCESS_LEN = {None: 64, 0: 2048, 1: 1024}
RTOL = 1e-5
BATCHES = (1, 16, 200)
QUERY_TOKENS = {None: (1, 2, 3), 0: (1, 2, 3, 4), 1: (1, 2, 3, 4)}


@frozen
class HpcCase:
    """A point of a grid."""

    quant: int | None
    batch: int
    query_tokens: int
    max_kv: int
    heads: tuple[int, int]  #: key/value heads, query heads

    @property
    def label(self) -> str:
        kind = "bf16" if self.quant is None else f"fp8 quant{self.quant}"
        return f"{kind} batch{self.batch} nq{self.query_tokens} kv{self.max_kv} heads{self.heads[0]}x{self.heads[1]}"


def make_problem(case: HpcCase, device: str, seed: int = 41) -> DecodeProblem:
    """Random tensors of a case in NHD layout; K and V are halves of one cache."""
    generator = torch.Generator(device).manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    kv_heads, query_heads = case.heads
    lens = torch.randint(1, case.max_kv, (case.batch,), generator=generator, device=device, dtype=torch.int32) + case.query_tokens
    needed = ((lens + PAGE - 1) // PAGE).tolist()
    pages = int(sum(needed) * 1.2) + 1
    order = torch.randperm(pages, generator=generator, device=device).int()
    block_ids = torch.zeros(case.batch, max(needed), dtype=torch.int32, device=device)
    for b, count in enumerate(needed):
        start = sum(needed[:b])
        block_ids[b, :count] = order[start : start + count]
    q = randn(case.batch * case.query_tokens, query_heads, HEAD_DIM) / math.sqrt(HEAD_DIM)
    cache = randn(pages, 2, PAGE, kv_heads, HEAD_DIM)
    common = {"block_ids": block_ids, "kv_lens": lens, "query_tokens": case.query_tokens}
    if case.quant is None:
        cache = cache.bfloat16()
        return DecodeProblem(q=q.bfloat16(), k_cache=cache[:, 0], v_cache=cache[:, 1], q_scale=None, k_scale=None, v_scale=None, **common)
    q_scale = q.abs().amax(-1) / 10
    q = (q / q_scale[..., None]).to(torch.float8_e4m3fn)
    if case.quant == 1:
        cache = (cache / math.sqrt(HEAD_DIM)).to(torch.float8_e4m3fn)
        return DecodeProblem(q=q, k_cache=cache[:, 0], v_cache=cache[:, 1], q_scale=q_scale, k_scale=randn(1), v_scale=randn(1), **common)
    rows = PAGE * 4 // HEAD_DIM
    k_scale = cache[:, 0].abs().amax(-1) / 448
    v_scale = cache[:, 1].abs().amax((0, 1, 3)) / 448
    stored = torch.empty(pages, 2, PAGE + rows, kv_heads, HEAD_DIM, dtype=torch.float8_e4m3fn, device=device)
    stored[:, 0, :PAGE] = (cache[:, 0] / k_scale[..., None]).to(torch.float8_e4m3fn)
    stored[:, 1, :PAGE] = (cache[:, 1] / v_scale[:, None]).to(torch.float8_e4m3fn)
    stored[:, 1, PAGE:] = torch.zeros((), device=device).to(torch.float8_e4m3fn)
    # a page's scales [tokens, kv heads] as rows of 32 float32 numbers for each head
    stored[:, 0, PAGE:].view(torch.float32).copy_(k_scale.view(pages, rows, HEAD_DIM // 4, kv_heads).transpose(2, 3))
    tensors = {"k_cache": stored[:, 0, :PAGE], "v_cache": stored[:, 1, :PAGE], "k_scale": stored[:, 0, PAGE:], "v_scale": v_scale * 0.1}
    return DecodeProblem(q=q, q_scale=q_scale, **tensors, **common)


def in_hnd(problem: DecodeProblem) -> DecodeProblem:
    """The same problem with heads before tokens in memory."""
    page = problem.k_cache.shape[1]
    extra = problem.k_scale.shape[1] if problem.k_scale is not None and problem.k_scale.dim() == 4 else 0
    pages, _, heads, dim = problem.k_cache.shape
    stored = torch.empty(pages, 2, heads, page + extra, dim, dtype=problem.k_cache.dtype, device=problem.q.device).transpose(2, 3)
    stored[:, 0, :page], stored[:, 1, :page] = problem.k_cache, problem.v_cache
    changed: dict[str, Tensor] = {"k_cache": stored[:, 0, :page], "v_cache": stored[:, 1, :page]}
    if extra:
        stored[:, 0, page:] = problem.k_scale
        changed["k_scale"] = stored[:, 0, page:]
    return evolve(problem, **changed)


def assigned(problem: DecodeProblem, min_process_len: int, *, max_kv: int = 1 << 17, new_kv_included: bool = True) -> Tensor:
    """A task map for the problem's lengths."""
    kv_heads = problem.k_cache.shape[2]
    task_map = hpc.get_attention_decode_task_workspace(len(problem.kv_lens), max_kv, kv_heads, min_process_len=min_process_len)
    return hpc.assign_attention_decode_task(problem.kv_lens, task_map, kv_heads, problem.query_tokens, new_kv_included, min_process_len=min_process_len)


def attend(problem: DecodeProblem, **options: Any) -> Tensor:
    """The operator of the problem's types; lengths count this step's tokens."""
    options = {"mtp": problem.query_tokens - 1, "new_kv_included": True, **options}
    tensors = (problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)
    if not problem.is_fp8:
        return hpc.attention_decode_bf16(*tensors, **options)
    options.setdefault("quant_type", quant_type(problem))
    return hpc.attention_decode_fp8(*tensors, problem.q_scale, problem.k_scale, problem.v_scale, **options)


def quant_type(problem: DecodeProblem) -> hpc.QuantType:
    assert problem.k_scale is not None
    return hpc.QuantType(0 if problem.k_scale.dim() == 4 else 1)


@frozen(eq=False)
class Expected:
    """What a problem's attention is, computed once."""

    problem: DecodeProblem
    there: Tensor  #: with P rounded as their reference rounds it (FP8)
    exact: Tensor  #: with P not rounded

    @classmethod
    def of(cls, problem: DecodeProblem) -> Expected:
        exact = problem.reference(p_quant=None)[0]
        return cls(problem, problem.reference()[0] if problem.is_fp8 else exact, exact)

    def check(self, out: Tensor, quant: int | None, what: str) -> None:
        """Their assertion, an absolute error, and ours: the relative RMS error of the whole and of each row."""
        error = (out.double() - self.there).abs()
        assert (error <= ATOL[quant] + RTOL * self.there.abs()).all(), f"{what}: error {float(error.max()):.3g} where {ATOL[quant]} is allowed"
        compare(out, self.exact, rms=relative_tolerance(self.problem.is_fp8), name_row=lambda row: f"{what}, {self.problem.name_row(row)}")


@cache
def relative_tolerance(fp8: bool) -> float:
    return tolerance(tle_attn.load("hy3/decode_fp8" if fp8 else "hy3/decode_bf16").kernel())[0]


def check_case(case: HpcCase, device: str) -> None:
    """Both layouts, with a static split and with a task map, into an output full of NaN."""
    problem = make_problem(case, device)
    expected = Expected.of(problem)
    for placed, layout in ((problem, "NHD"), (in_hnd(problem), "HND")):
        for task_map, split in ((None, "static"), (assigned(placed, MIN_PROCESS_LEN[case.quant]), "task map")):
            output = placed.new_output()
            attend(placed, task_map=task_map, output=output)
            expected.check(output, case.quant, f"{layout}, {split}")


def grid_kernels() -> dict[str, Kernel]:
    """Every kernel of the whole grids by a name, so that they can be compiled ahead."""
    kernels: dict[str, Kernel] = {}
    for quant, scales in ((None, "none"), (0, "token_head"), (1, "tensor")):
        for query_tokens in QUERY_TOKENS[quant]:
            for batch in (None, *BATCHES):
                static = None if batch is None else plans.split_of(batch, True)
                kernel = plans.kernel_for(scales, query_tokens, PAGE, 8, static)
                kernels[f"{kernel.name} nq{query_tokens} {'task map' if static is None else f'static {static[0]}'}"] = kernel
            kernels[f"planner nq{query_tokens} min{MIN_PROCESS_LEN[quant]}"] = plans.planner_kernel(query_tokens, MIN_PROCESS_LEN[quant])
    return kernels


def grid() -> list[HpcCase]:
    """The whole grids, without layouts and schedules."""
    return [
        HpcCase(quant, batch, query_tokens, max_kv, heads)
        for quant in (None, 0, 1)
        for batch in BATCHES
        for query_tokens in QUERY_TOKENS[quant]
        for max_kv in (1024, 4096)
        for heads in ((1, 8), (4, 32))
    ]
