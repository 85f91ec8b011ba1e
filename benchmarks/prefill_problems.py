"""Problems of the prefill benchmark, made on the device that they are measured on, and the right values of some of their rows."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from benchmarks.prefill_cases import TILE, Case, frontier
from benchmarks.workloads import HEAD_DIM, PAGE, laid_out, paged, poisoned, quantised
from tle_attn.testing import ContiguousProblem, PrefillProblem

SEED, MASK_SEED = 10086, 10103
#: rows of a (sequence, head) that are checked, and such pairs
ROWS_CHECKED, PAIRS_CHECKED = 48, 6


def make_problem(case: Case, device: torch.device | str = "cuda") -> PrefillProblem:
    """Tensors of a case: pages in random order, NaN in every slot without a token and in q scales of no query."""
    generator = torch.Generator(device).manual_seed(SEED)

    def noise(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype, device=device)

    query_heads, kv_heads = case.heads
    small = 1 / math.sqrt(HEAD_DIM) if case.reference else 1.0
    q_lens, kv_lens = [q for q, _ in case.pairs], [kv for _, kv in case.pairs]
    starts = torch.tensor([0, *itertools.accumulate(q_lens)], dtype=torch.int32, device=device)
    q = noise(case.rows, query_heads, HEAD_DIM) * small
    common: dict[str, Any] = {"cu_seqlens_q": starts, "kv_lens": torch.tensor(kv_lens, dtype=torch.int32, device=device)}
    if not case.paged:
        k, v = noise(case.rows, 1, kv_heads, HEAD_DIM) * small, noise(case.rows, 1, kv_heads, HEAD_DIM)
        table = (starts[:-1, None] + torch.arange(max(q_lens), device=device)).int()
        return ContiguousProblem(q=q, k_cache=k, v_cache=v, block_ids=table, q_scale=None, k_scale=None, v_scale=None, **common)
    block_ids, live = paged(kv_lens, PAGE, generator, device)
    k, v = noise(len(live), PAGE, kv_heads, HEAD_DIM) * small, noise(len(live), PAGE, kv_heads, HEAD_DIM)
    scales: dict[str, torch.Tensor | None] = {"q_scale": None, "k_scale": None, "v_scale": None}
    if case.quant is not None:
        q, k, v, scales = _fp8(case, q, k, v, starts, generator)
    k_cache, v_cache = (laid_out(poisoned(x, live), case.layout) for x in (k, v))
    mask = None if case.density is None else block_mask(case).to(device)
    return PrefillProblem(q=q, k_cache=k_cache, v_cache=v_cache, block_ids=block_ids, block_mask=mask, **scales, **common)


def _fp8(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, generator: torch.Generator) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Q, K and V as e4m3, and scales: the reference's, which do not belong to the numbers, or those of the numbers."""
    per_token, device = case.quant == 0, q.device
    if case.reference:
        q, k, v = (x.to(torch.float8_e4m3fn) for x in (q, k, v))
        q_rows = torch.randn(q.shape[:2], generator=generator, device=device).abs() / 10
        k_slots = torch.randn(k.shape[:3], generator=generator, device=device).abs().clamp(min=1e-6)
        k_one, v_one = (torch.rand(1, generator=generator, device=device) + 0.5 for _ in range(2))
        v_heads = torch.randn(k.shape[2], generator=generator, device=device).abs().clamp(min=1e-6)
    else:
        q, q_rows = quantised(q, (2,))
        k, k_scale = quantised(k, (3,) if per_token else (0, 1, 2, 3))
        v, v_scale = quantised(v, (0, 1, 3) if per_token else (0, 1, 2, 3))
        q_rows = q_rows.squeeze(2)
        k_slots, k_one, v_heads, v_one = k_scale.squeeze(3), k_scale.reshape(-1), v_scale.reshape(-1), v_scale.reshape(-1)
    longest = -(-max(n for n, _ in case.pairs) // TILE) * TILE
    q_scale = torch.full((len(case.pairs), q.shape[1], longest), math.nan, device=device)
    for b, (start, end) in enumerate(itertools.pairwise(starts.tolist())):
        q_scale[b, :, : end - start] = q_rows[start:end].T
    if not per_token:
        return q, k, v, {"q_scale": q_scale, "k_scale": k_one, "v_scale": v_one}
    in_rows = k_slots.view(len(k), PAGE // 32, 32, k.shape[2]).permute(0, 1, 3, 2).contiguous()
    return q, k, v, {"q_scale": q_scale, "k_scale": in_rows, "v_scale": v_heads}


def block_mask(case: Case) -> torch.Tensor:
    """uint8 [batch, query heads, query tiles, key tiles], on the CPU: tiles of the causal range at random, and the last one that a query tile sees."""
    generator = torch.Generator().manual_seed(MASK_SEED)
    tiles = [-(-max(n) // TILE) for n in zip(*case.pairs, strict=True)]
    mask = torch.rand((len(case.pairs), case.heads[0], *tiles), generator=generator) >= 1 - (case.density or 0.0)
    column = torch.arange(tiles[1])
    for b, (queries, keys) in enumerate(case.pairs):
        last = frontier(queries, keys)[:, None]
        rows = mask[b, :, : len(last)]
        mask[b, :, : len(last)] = rows & (column <= last) | (column == last)
    return mask.to(torch.uint8)


def kept_tiles(case: Case) -> int:
    """Tiles that are visited: those of the causal range, less what the block mask drops."""
    return case.tiles if case.density is None else int(block_mask(case).sum())


def sampled_error(problem: PrefillProblem, out: torch.Tensor, seed: int = 0) -> float:
    """Relative RMS error of some rows of `out` against float64: first and last rows, rows around tiles, and others, of several (sequence, head) pairs.

    NaN if anything that a sequence owns is not finite.
    """
    if not out[: problem.num_queries].isfinite().all():
        return math.nan
    generator = torch.Generator().manual_seed(seed)
    starts, lens = problem.cu_seqlens_q.tolist(), problem.kv_lens.tolist()
    with_queries = [b for b in range(len(lens)) if starts[b] < starts[b + 1]]
    chosen = [max(with_queries, key=lambda b: starts[b + 1] - starts[b]), min(with_queries, key=lambda b: starts[b + 1] - starts[b])]
    chosen += [with_queries[int(i)] for i in torch.randint(len(with_queries), (PAIRS_CHECKED - 2,), generator=generator)]
    errors, sizes = 0.0, 0.0
    for b in chosen:
        head, count = int(torch.randint(out.shape[1], (1,), generator=generator)), starts[b + 1] - starts[b]
        rows = torch.cat([torch.tensor([0, count - 1, 127, 128, 129]), torch.randint(count, (ROWS_CHECKED - 5,), generator=generator)]).clamp(max=count - 1).unique()
        expected = reference_rows(problem, b, head, rows.to(out.device))
        got = out[starts[b] + rows.to(out.device), head].double()
        errors += float((got - expected).square().sum())
        sizes += float(expected.square().sum())
    return math.sqrt(errors / sizes)


def reference_rows(problem: PrefillProblem, b: int, head: int, rows: torch.Tensor) -> torch.Tensor:
    """float64 attention of query rows (numbers within sequence b) of one query head."""
    _, page, kv_heads, dim = problem.k_cache.shape
    kv_head, length = head // (problem.q.shape[1] // kv_heads), int(problem.kv_lens[b])
    start, end = problem.cu_seqlens_q[b : b + 2].tolist()
    pages = problem.block_ids[b, : -(-length // page)].long()
    k, v = (cache[pages, :, kv_head].reshape(-1, dim)[:length].double() for cache in (problem.k_cache, problem.v_cache))
    q = problem.q[start + rows, head].double()
    if problem.is_fp8:
        assert problem.q_scale is not None and problem.k_scale is not None and problem.v_scale is not None
        q *= problem.q_scale[b, head, rows, None].double()
        k *= problem.k_scale.double() if problem.k_scale.dim() == 1 else problem.k_scale[pages, :, kv_head].reshape(-1, 1)[:length].double()
        v *= problem.v_scale[kv_head if problem.v_scale.numel() > 1 else 0].double()
    position, key = (length - (end - start) + rows)[:, None], torch.arange(length, device=rows.device)
    seen = key <= position
    if problem.block_mask is not None:
        seen &= problem.block_mask[b, head][rows[:, None] // TILE, key // TILE] != 0
    scores = (q @ k.T / math.sqrt(dim)).masked_fill(~seen, -math.inf)
    return torch.softmax(scores, 1).nan_to_num(0.0) @ v
