"""Prefill problems as the tests of hpc-ops make them: the data, tolerances and arguments of its prefill grids."""

from __future__ import annotations

import math
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from tests.compat.hpc_cases import HEAD_DIM, PAGE, RTOL, relative_tolerance
from tle_attn.compat import hpc_ops as hpc
from tle_attn.testing import ContiguousProblem, PrefillProblem, compare

#: absolute error that its tests allow
ATOL = {"contiguous": 0.016, "kvcache": 0.016, "dense": 0.05, "blocksparse": 0.1}


@frozen
class PrefillCase:
    """A point of a grid: `batch` sequences of `queries` on `keys`."""

    operator: str
    quant: int | None
    batch: int
    queries: int
    keys: int
    heads: tuple[int, int] = (4, 1)
    skip: float | None = None  #: share of a block mask's tiles that is dropped

    @property
    def label(self) -> str:
        kind = "bf16" if self.quant is None else f"quant{self.quant}"
        return f"{self.operator} {kind} batch{self.batch} {self.queries}on{self.keys}" + ("" if self.skip is None else f" skip{self.skip}")


def grid() -> list[PrefillCase]:
    """The whole grids, without layouts and given outputs, which `check_case` goes through."""
    cases = [PrefillCase("contiguous", None, b, n, n) for b in (1, 4) for n in (2007, 3907)]
    cases += [PrefillCase("kvcache", None, b, n, kv) for b in (1, 2, 4, 8) for n in (100, 500, 1000, 1500) for kv in (1500, 3000)]
    cases += [PrefillCase("dense", 1, 4, n, 3904) for n in (100, 500, 1000, 1500, 3904)]
    cases.append(PrefillCase("dense", 0, 1, 3904, 3904, (8, 2)))
    cases += [PrefillCase("blocksparse", quant, 2, n, n, skip=skip) for quant in (0, 1) for n in (1024, 2048) for skip in (None, 0.5)]
    return cases


def make_problem(case: PrefillCase, device: str, seed: int = 41) -> PrefillProblem:
    """Random tensors of a case, in NHD layout."""
    generator = torch.Generator(device).manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    query_heads, kv_heads = case.heads
    rows = case.batch * case.queries
    starts = torch.arange(0, rows + 1, case.queries, dtype=torch.int32, device=device)
    lens = torch.full((case.batch,), case.keys, dtype=torch.int32, device=device)
    q = randn(rows, query_heads, HEAD_DIM) / math.sqrt(HEAD_DIM)
    common: dict[str, Any] = {"cu_seqlens_q": starts, "kv_lens": lens}
    none = {"q_scale": None, "k_scale": None, "v_scale": None}
    if case.operator == "contiguous":
        k, v = randn(rows, 1, kv_heads, HEAD_DIM) / math.sqrt(HEAD_DIM), randn(rows, 1, kv_heads, HEAD_DIM)
        table = (starts[:-1, None] + torch.arange(case.queries, device=device)).int()
        return ContiguousProblem(q=q.bfloat16(), k_cache=k.bfloat16(), v_cache=v.bfloat16(), block_ids=table, **none, **common)
    width = -(-case.keys // PAGE)
    pages = int(case.batch * width * 1.2) + 1
    block_ids = torch.randperm(pages, generator=generator, device=device)[: case.batch * width].int().view(case.batch, width)
    k, v = randn(pages, PAGE, kv_heads, HEAD_DIM), randn(pages, PAGE, kv_heads, HEAD_DIM)
    if case.quant is None:
        return PrefillProblem(q=q.bfloat16(), k_cache=k.bfloat16(), v_cache=v.bfloat16(), block_ids=block_ids, **none, **common)
    padded = -(-case.queries // 128) * 128
    scales = {"q_scale": randn(case.batch, query_heads, padded).abs() / 10}
    if case.quant == 1:
        scales |= {"k_scale": randn(1).abs() * 10, "v_scale": randn(1)}
    else:
        scales |= {"k_scale": randn(pages, PAGE // 32, kv_heads, 32).abs(), "v_scale": torch.ones(kv_heads, device=device)}
    q, k, v = (x.to(torch.float8_e4m3fn) for x in (q, k, v))
    mask = None
    if case.skip is not None:
        tiles = torch.arange(-(-case.keys // 128), device=device)
        kept = torch.rand((case.batch, query_heads, len(tiles), len(tiles)), generator=generator, device=device) >= case.skip
        mask = (kept & (tiles <= tiles[:, None]) | (tiles == tiles[:, None])).to(torch.uint8)
    return PrefillProblem(q=q, k_cache=k, v_cache=v, block_ids=block_ids, block_mask=mask, **scales, **common)


def in_hnd(problem: PrefillProblem) -> PrefillProblem:
    """The same problem with heads before tokens in memory."""
    caches = {name: getattr(problem, name).transpose(1, 2).contiguous().transpose(1, 2) for name in ("k_cache", "v_cache")}
    return evolve(problem, **caches)


def attend(problem: PrefillProblem, operator: str, **options: Any) -> Tensor:
    """The operator on a problem."""
    p, longest = problem, problem.max_q_len
    if operator == "contiguous":
        return hpc.attention_prefill_bf16(p.q, p.k_cache[:, 0], p.v_cache[:, 0], p.kv_lens, p.cu_seqlens_q, longest, **options)
    if operator == "kvcache":
        return hpc.attention_with_kvcache_prefill_bf16(p.q, p.k_cache, p.v_cache, p.cu_seqlens_q, p.block_ids, p.kv_lens, longest, **options)
    scales, lengths = (p.q_scale, p.k_scale, p.v_scale), (p.cu_seqlens_q, p.block_ids, p.kv_lens, longest)
    assert p.k_scale is not None
    options.setdefault("quant_type", hpc.QuantType(0 if p.k_scale.dim() == 4 else 1))
    if operator == "dense":
        return hpc.attention_with_kvcache_prefill_fp8(p.q, p.k_cache, p.v_cache, *scales, *lengths, **options)
    return hpc.attention_with_kvcache_blocksparse_prefill_fp8(p.q, p.k_cache, p.v_cache, *scales, *lengths, block_mask=p.block_mask, **options)


def check_case(case: PrefillCase, device: str) -> None:
    """Both layouts, K scales as float32 and as bytes, a new output and a given one full of NaN."""
    problem = make_problem(case, device)
    exact = problem.reference(p_quant=None)[0]
    there = problem.reference()[0] if problem.is_fp8 else exact
    layouts = [problem] if case.operator == "contiguous" else [problem, in_hnd(problem)]
    for placed, layout in zip(layouts, ("NHD", "HND")):
        output = placed.new_output()
        assert attend(placed, case.operator, output=output) is output
        error = (output.double() - there).abs()
        assert (error <= ATOL[case.operator] + RTOL * there.abs()).all(), f"{layout}: error {float(error.max()):.3g} where {ATOL[case.operator]} is allowed"
        compare(output, exact, rms=relative_tolerance(problem.is_fp8), name_row=lambda row: f"{layout}, {problem.name_row(row)}")
        if case.quant == 0:
            placed = evolve(placed, k_scale=placed.k_scale.view(torch.float8_e4m3fn))
        assert torch.equal(attend(placed, case.operator), output)
