"""The batches of the decode benchmark, made on the device that they are measured on, and what other benchmarks need to make theirs.

Their KV lengths are `tle_attn.testing.WORKLOADS`; heads, page and seed are those of the CUDA reference's benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tle_attn.testing import WORKLOADS, DecodeProblem
from tle_attn.testing.paged import KV_PER_TOKEN, Quant

#: (query heads, key/value heads)
HEADS = (8, 1)
HEAD_DIM = 128
PAGE = 64
SEED = 41
#: Pages that belong to no sequence, full of NaN.
SPARE_PAGES = 3


def decode_problem(
    case: str | Sequence[int],
    *,
    query_tokens: int,
    layout: str,
    heads: tuple[int, int] = HEADS,
    head_dim: int = HEAD_DIM,
    value_dim: int | None = None,
    page: int = PAGE,
    quant: Quant = None,
    device: torch.device | str = "cuda",
) -> DecodeProblem:
    """Problem of unit variance, of a workload's or of given KV lengths: pages in random order, this step's tokens counted in kv_lens, NaN in every slot without a token.

    `quant`: None for bf16; 1 for fp8 with K and V scales per tensor; 0 for fp8 with K scales per token and head in extra rows of the K cache, V
    per head; "kv_per_token" for both per token and head, in their caches; Q scales per token and head in all.
    `layout`: "NHD" [page, token, head, dim] or "HND" [page, head, token, dim] in memory; the caches are NHD views of it.
    """
    if layout not in ("NHD", "HND"):
        raise ValueError(f'layout: {layout!r}; allowed: "NHD", "HND"')
    lengths = WORKLOADS[case] if isinstance(case, str) else case
    generator = torch.Generator(device).manual_seed(SEED)
    block_ids, live = paged(lengths, page, generator, device)
    pages = len(live)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.bfloat16, device=device)

    q, k, v = noise(len(lengths) * query_tokens, heads[0], head_dim), noise(pages, page, heads[1], head_dim), noise(pages, page, heads[1], value_dim or head_dim)
    scales: dict[str, torch.Tensor | None] = {"q_scale": None, "k_scale": None, "v_scale": None}
    extra: dict[str, torch.Tensor] = {}
    if quant is not None:
        q, q_scale = quantised(q, (2,))
        k, k_scale = quantised(k, (0, 1, 2, 3) if quant == 1 else (3,))
        v, v_scale = quantised(v, {1: (0, 1, 2, 3), 0: (0, 1, 3), KV_PER_TOKEN: (3,)}[quant])
        scales = {"q_scale": q_scale.squeeze(2).contiguous(), "k_scale": k_scale.reshape(-1), "v_scale": v_scale.reshape(-1)}
        per_token = {0: {"k_scale": k_scale}, KV_PER_TOKEN: {"k_scale": k_scale, "v_scale": v_scale}}.get(quant, {})
        extra = {name: scale.view(pages, page // 32, 32, heads[1]).permute(0, 1, 3, 2).contiguous().view(torch.float8_e4m3fn) for name, scale in per_token.items()}
    caches = {}
    for name, values in (("k", poisoned(k, live)), ("v", poisoned(v, live))):
        rows = extra.get(f"{name}_scale")
        caches[name] = laid_out(values if rows is None else torch.cat([values, rows], 1), layout)
        if rows is not None:
            scales[f"{name}_scale"] = caches[name][:, page:]
    k_cache, v_cache = caches["k"][:, :page], caches["v"][:, :page]
    kv_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    return DecodeProblem(q=q, k_cache=k_cache, v_cache=v_cache, block_ids=block_ids, kv_lens=kv_lens, query_tokens=query_tokens, **scales)


def paged(lengths: Sequence[int], page: int, generator: torch.Generator, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Page ids int32 [sequences, pages of the longest], -1 where there is none, in random order; and bool [pages, page]: slots that hold a token."""
    needed = [-(-n // page) for n in lengths]
    pages = sum(needed) + SPARE_PAGES
    order = torch.randperm(pages, generator=generator, device=device).int()
    block_ids = torch.full((len(lengths), max(needed)), -1, dtype=torch.int32, device=device)
    live = torch.zeros(pages, page, dtype=torch.bool, device=device)
    first = 0
    for b, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        mine = order[first : first + count]
        block_ids[b, :count] = mine
        live[mine.long()] = (torch.arange(count * page, device=device) < length).view(count, page)
        first += count
    return block_ids, live


def poisoned(cache: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """A cache [pages, page, heads, dim] with NaN in every slot without a token, in place."""
    if cache.dtype == torch.float8_e4m3fn:
        cache.view(torch.uint8)[~live] = 0x7F
    else:
        cache[~live] = math.nan
    return cache


def laid_out(cache: torch.Tensor, layout: str) -> torch.Tensor:
    """An NHD view of a cache [pages, rows, heads, dim] whose memory is in `layout`."""
    return cache if layout == "NHD" else cache.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)


def quantised(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """x as e4m3, and its scales, which `dims` share and keep with extent 1."""
    scale = x.float().abs().amax(dims, keepdim=True) / 448
    return (x.float() / scale).to(torch.float8_e4m3fn), scale
