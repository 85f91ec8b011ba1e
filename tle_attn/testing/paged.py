"""Random paged KV caches in which everything that holds no live key is poison."""

import math

import torch
from attrs import frozen
from torch import Tensor

from tle_attn.oracle import quantise_e4m3

#: Columns of the page table beyond what the longest sequence needs.
SPARE_COLUMNS = 3
#: Block ids of pages that no sequence has, alternating.
INVALID_PAGES = (-1, 2**31 - 1)
#: `quant` of a cache whose K and V have a scale per token and head each
KV_PER_TOKEN = "kv_per_token"
#: Tokens in a row of scales that are kept apart from the cache.
SCALES_PER_ROW = 32


#: how K and V are quantised: None (not), 0 and 1 as the quant types of hpc-ops, or KV_PER_TOKEN
Quant = int | str | None


@frozen(eq=False)
class PagedCache:
    """K and V of a batch: caches [pages, page, Hkv, D] as NHD views, scales as in `tle_attn.oracle.scales`."""

    k_cache: Tensor
    v_cache: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    block_ids: Tensor  #: int32 [B, columns]


def _check_format(dtype: str, quant: Quant, layout: str) -> None:
    if (dtype, quant) not in (("bf16", None), ("fp8", 0), ("fp8", 1), ("fp8", KV_PER_TOKEN)):
        raise ValueError(
            f'dtype, quant: {dtype!r}, {quant}; allowed: "bf16" with None, "fp8" with 0 (K scale per token and head), 1 (per tensor) or "{KV_PER_TOKEN}" (K and V scale per token and head)'
        )
    if layout not in ("NHD", "HND"):
        raise ValueError(f'layout: {layout!r}; allowed: "NHD", "HND"')


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """`tensor` on a device, strides kept; `Tensor.to` closes the gaps of a view."""
    if tensor.device == torch.device(device):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)


def spread(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Factors in 1/2 .. 2, so that a scale taken from the wrong token or head shows."""
    return torch.exp2(2 * torch.rand(shape, generator=generator) - 1)


def make_paged_cache(
    kv_lens: list[int],
    generator: torch.Generator,
    *,
    heads: int,
    head_dim: int,
    value_dim: int | None = None,
    page: int,
    dtype: str,
    quant: Quant,
    layout: str,
    scales_in_cache: bool,
    poison: bool,
    extra_pages: int,
) -> PagedCache:
    """K and V of unit variance in shuffled pages; V has `value_dim` elements a head, as many as K if not given.  The live data depend on neither `layout` nor `poison`.

    dtype "bf16" with quant None; "fp8" (e4m3) with quant 0: K scale per token and head, V scale per head, 1: one scale each, or
    "kv_per_token": K and V scale per token and head.
    `scales_in_cache` puts scales per token in extra rows of the cache's own pages (as e4m3 bytes), else they
    are float32 [pages, rows, Hkv, 32].  `poison`: slots, pages and scales without a live token hold NaN, and block ids
    without a page are invalid; else all are 0.
    """
    _check_format(dtype, quant, layout)
    needed = [-(-length // page) for length in kv_lens]
    num_pages = sum(needed) + extra_pages
    order = torch.randperm(num_pages, generator=generator)
    shape = (num_pages, page, heads, head_dim)
    k = torch.randn(shape, generator=generator)
    v = torch.randn((*shape[:3], value_dim or head_dim), generator=generator)
    k_spread, v_spread = spread((*shape[:3], 1), generator), spread((heads, 1), generator)
    if quant == KV_PER_TOKEN:
        v_spread = spread((*shape[:3], 1), generator)

    block_ids = torch.zeros(len(kv_lens), max(needed, default=0) + SPARE_COLUMNS, dtype=torch.int32)
    if poison:
        block_ids.view(-1)[0::2], block_ids.view(-1)[1::2] = INVALID_PAGES
    live = torch.zeros(num_pages, page, dtype=torch.bool)
    first = 0
    for b, (length, count) in enumerate(zip(kv_lens, needed, strict=True)):
        pages = order[first : first + count]
        block_ids[b, :count] = pages.int()
        live[pages] = (torch.arange(count * page) < length).view(count, page)
        first += count

    fill = math.nan if poison else 0.0
    if quant is None:
        return PagedCache(_stored(k.bfloat16(), live, fill, layout), _stored(v.bfloat16(), live, fill, layout), None, None, block_ids)
    if quant == 1:
        k_values, k_scale = quantise_e4m3(k)
        v_values, v_scale = quantise_e4m3(v)
        return PagedCache(_stored(k_values, live, fill, layout), _stored(v_values, live, fill, layout), k_scale, v_scale, block_ids)
    k_values, k_slots = quantise_e4m3(k * k_spread, axis=3)
    k_cache, k_scale = _with_scales(k_values, k_slots, live, fill, layout, scales_in_cache)
    if quant == KV_PER_TOKEN:
        v_values, v_slots = quantise_e4m3(v * v_spread, axis=3)
        v_cache, v_scale = _with_scales(v_values, v_slots, live, fill, layout, scales_in_cache)
        return PagedCache(k_cache, v_cache, k_scale, v_scale, block_ids)
    v_values, v_scale = quantise_e4m3(v * v_spread, axis=(0, 1, 3))
    return PagedCache(k_cache, _stored(v_values, live, fill, layout), k_scale, v_scale, block_ids)


def _with_scales(values: Tensor, slot_scale: Tensor, live: Tensor, fill: float, layout: str, in_cache: bool) -> tuple[Tensor, Tensor]:
    """A cache and its scales [pages, page, heads] in rows of their own, or of the cache's pages."""
    slot_scale[~live] = fill
    scale_rows = _in_rows(slot_scale, values.shape[3] // 4 if in_cache else SCALES_PER_ROW, fill)
    if not in_cache:
        return _stored(values, live, fill, layout), scale_rows
    page = values.shape[1]
    storage = _stored(values, live, fill, layout, extra_rows=scale_rows.shape[1])
    storage[:, page:].view(torch.float32).copy_(scale_rows)
    return storage[:, :page], storage[:, page:]


def _in_rows(slot_scale: Tensor, per_row: int, fill: float) -> Tensor:
    """[pages, page, heads] to [pages, rows, heads, per_row], the last row filled up."""
    pages, page, heads = slot_scale.shape
    rows = -(-page // per_row)
    padded = torch.full((pages, rows * per_row, heads), fill)
    padded[:, :page] = slot_scale
    return padded.view(pages, rows, per_row, heads).permute(0, 1, 3, 2).contiguous()


def _stored(values: Tensor, live: Tensor, fill: float, layout: str, extra_rows: int = 0) -> Tensor:
    """An NHD view [pages, page + extra_rows, heads, dim] of storage in `layout`; what is not live holds `fill`."""
    pages, page, heads, dim = values.shape
    rows = page + extra_rows
    if layout == "NHD":
        stored = torch.full((pages, rows, heads, dim), fill, dtype=torch.float32).to(values.dtype)
    else:
        stored = torch.full((pages, heads, rows, dim), fill, dtype=torch.float32).to(values.dtype).permute(0, 2, 1, 3)
    filler = torch.full((), fill).to(values.dtype)
    stored[:, :page] = torch.where(live[:, :, None, None], values, filler)
    return stored
