"""The batches of the decode benchmark, made on the device that they are measured on.

Their KV lengths are `tle_attn.testing.WORKLOADS`; heads, page and seed are those of the CUDA reference's benchmark.
"""

from __future__ import annotations

import math

import torch

from tle_attn.testing import WORKLOADS, DecodeProblem

#: (query heads, key/value heads)
HEADS = (8, 1)
HEAD_DIM = 128
PAGE = 64
SEED = 41
#: Pages that belong to no sequence, full of NaN.
SPARE_PAGES = 3


def decode_problem(
    case: str,
    *,
    query_tokens: int,
    layout: str,
    heads: tuple[int, int] = HEADS,
    head_dim: int = HEAD_DIM,
    page: int = PAGE,
    device: torch.device | str = "cuda",
) -> DecodeProblem:
    """BF16 problem of unit variance: pages in random order, this step's tokens counted in kv_lens, NaN in every slot without a token.

    `layout`: "NHD" [page, token, head, dim] or "HND" [page, head, token, dim] in memory; the caches are NHD views of it.
    """
    if layout not in ("NHD", "HND"):
        raise ValueError(f'layout: {layout!r}; allowed: "NHD", "HND"')
    lengths = WORKLOADS[case]
    generator = torch.Generator(device).manual_seed(SEED)
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

    def cache() -> torch.Tensor:
        shape = (pages, page, heads[1], head_dim) if layout == "NHD" else (pages, heads[1], page, head_dim)
        stored = torch.randn(shape, generator=generator, dtype=torch.bfloat16, device=device)
        view = stored if layout == "NHD" else stored.permute(0, 2, 1, 3)
        view[~live] = math.nan
        return view

    return DecodeProblem(
        q=torch.randn(len(lengths) * query_tokens, heads[0], head_dim, generator=generator, dtype=torch.bfloat16, device=device),
        k_cache=cache(),
        v_cache=cache(),
        block_ids=block_ids,
        kv_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        q_scale=None,
        k_scale=None,
        v_scale=None,
        query_tokens=query_tokens,
    )
