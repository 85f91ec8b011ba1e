"""Random prefill problems: ragged queries over paged caches, or over K and V without pages, maybe with a block mask."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from tle_attn.oracle import quantise_e4m3
from tle_attn.testing.paged import Quant, make_paged_cache
from tle_attn.testing.problems import PagedProblem, queries, tensors_of

#: The CUDA reference wants the token axis of prefill q scales in multiples of this.
Q_SCALE_MULTIPLE = 128
#: Queries and keys that share a byte of a block mask.
MASK_TILE = 128


@frozen(eq=False, kw_only=True)
class PrefillProblem(PagedProblem):
    """Ragged queries, and maybe rows after them that belong to no sequence.  q_scale [B, Hq, S]."""

    cu_seqlens_q: Tensor  #: int32 [B + 1]
    block_mask: Tensor | None = None  #: uint8 [B, Hq, query tiles, key tiles], not 0 where a tile is kept

    @property
    def max_q_len(self) -> int:
        """Queries of the longest sequence."""
        return int(self.cu_seqlens_q.diff().max())

    @property
    def num_queries(self) -> int:
        """Rows of q that sequences own."""
        return int(self.cu_seqlens_q[-1])

    @property
    def geometry(self) -> dict[str, Any]:
        return {**super().geometry, "max_query_rows": len(self.q)}

    @property
    def lengths(self) -> dict[str, Any]:
        return {**super().lengths, "cu_seqlens_q": self.cu_seqlens_q}

    @property
    def inputs(self) -> dict[str, Any]:
        mask = {} if self.block_mask is None else {"block_mask": self.block_mask}
        return {**super().inputs, "cu_seqlens_q": self.cu_seqlens_q, **mask}

    def reference(self, **options: Any) -> tuple[Tensor, Tensor | None]:
        """(out, lse) of `tle_attn.oracle.attention`; FP8 problems quantise P unless told otherwise."""
        return self._reference({"cu_seqlens_q": self.cu_seqlens_q, "block_mask": self.block_mask, **options})

    def name_row(self, row: int) -> str:
        """The query row in words, for failures."""
        if row >= self.num_queries:
            return "a row of no sequence"
        sequence = int((self.cu_seqlens_q <= row).sum()) - 1
        start, end = self.cu_seqlens_q[sequence : sequence + 2].tolist()
        return f"sequence {sequence} with kv_len {int(self.kv_lens[sequence])}, query {row - start} of {end - start}"


@frozen(eq=False, kw_only=True)
class ContiguousProblem(PrefillProblem):
    """K and V without pages: row i of both is the token of row i of q.  To the oracle every token is a page."""

    @property
    def inputs(self) -> dict[str, Any]:
        return {**super().inputs, "k_cache": self.k_cache[:, 0], "v_cache": self.v_cache[:, 0], "block_ids": None}


def make_prefill_problem(
    q_lens: Iterable[int],
    kv_lens: Iterable[int],
    *,
    padding_rows: int = 0,
    heads: tuple[int, int] = (8, 1),
    head_dim: int = 128,
    value_dim: int | None = None,
    page: int = 64,
    dtype: str = "bf16",
    layout: str = "NHD",
    quant: Quant = None,
    logit_std: float = 1.0,
    mask_density: float | None = None,
    mask_columns: int | None = None,
    seed: int = 0,
    poison: bool = True,
    extra_pages: int = 3,
    device: torch.device | str = "cpu",
) -> PrefillProblem:
    """A random prefill problem: sequence b has q_lens[b] queries (0 allowed), the last tokens of its kv_lens[b].

    As `make_decode_problem`, but K scales of quant 0 are apart from the cache.  `padding_rows` rows at the end of q, and
    q scales of no query, are poison too.  `mask_density`: share of the tiles that a block mask keeps; None for no mask.
    `mask_columns`: key tiles that it has, by default those of the longest sequence.
    """
    lengths, q_lengths = list(kv_lens), list(q_lens)
    generator = torch.Generator().manual_seed(seed)
    cache = make_paged_cache(
        lengths,
        generator,
        heads=heads[1],
        head_dim=head_dim,
        value_dim=value_dim,
        page=page,
        dtype=dtype,
        quant=quant,
        layout=layout,
        scales_in_cache=False,
        poison=poison,
        extra_pages=extra_pages,
    )
    starts, fill = torch.tensor([0, *q_lengths]).cumsum(0), math.nan if poison else 0.0
    q, q_scale = _ragged_queries(q_lengths, starts, padding_rows, fill, heads[0], head_dim, dtype, logit_std, generator)
    block_mask = _mask_of(q_lengths, lengths, heads[0], mask_density, mask_columns, generator)
    tensors = {**tensors_of(cache), "q": q, "q_scale": q_scale, "kv_lens": torch.tensor(lengths, dtype=torch.int32)}
    return PrefillProblem(cu_seqlens_q=starts.int(), block_mask=block_mask, **tensors).to(device)


def make_contiguous_problem(
    q_lens: Iterable[int],
    *,
    padding_rows: int = 0,
    heads: tuple[int, int] = (8, 1),
    head_dim: int = 128,
    value_dim: int | None = None,
    dtype: str = "bf16",
    quant: Quant = None,
    logit_std: float = 1.0,
    mask_density: float | None = None,
    mask_columns: int | None = None,
    seed: int = 0,
    poison: bool = True,
    device: torch.device | str = "cpu",
) -> ContiguousProblem:
    """A random prefill problem whose sequences have as many keys as queries, in rows of K and V; rows of no sequence are poison.

    `dtype`, `quant`: "bf16" with None, or "fp8" with 1, a scale of K and of V each: scales per token lie beside pages.  The others as of `make_prefill_problem`.
    """
    if (dtype, quant) not in (("bf16", None), ("fp8", 1)):
        raise ValueError(f'dtype, quant: {dtype!r}, {quant!r}; allowed without pages: "bf16" with None, "fp8" with 1 (per tensor)')
    q_lengths = list(q_lens)
    generator = torch.Generator().manual_seed(seed)
    starts, fill = torch.tensor([0, *q_lengths]).cumsum(0), math.nan if poison else 0.0
    q, q_scale = _ragged_queries(q_lengths, starts, padding_rows, fill, heads[0], head_dim, dtype, logit_std, generator)
    live = [torch.randn(sum(q_lengths), heads[1], dim, generator=generator) for dim in (head_dim, value_dim or head_dim)]
    (k, k_scale), (v, v_scale) = (quantise_e4m3(values) if quant else (values.bfloat16(), None) for values in live)
    block_ids = (starts[:-1, None] + torch.arange(max(q_lengths, default=0))).int()
    return ContiguousProblem(
        q=q, k_cache=_padded(k, padding_rows, fill)[:, None], v_cache=_padded(v, padding_rows, fill)[:, None], block_ids=block_ids, kv_lens=starts.diff().int(),
        cu_seqlens_q=starts.int(), q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, block_mask=_mask_of(q_lengths, q_lengths, heads[0], mask_density, mask_columns, generator),
    ).to(device)


def _mask_of(q_lengths: list[int], lengths: list[int], heads: int, density: float | None, columns: int | None, generator: torch.Generator) -> Tensor | None:
    """A block mask for the longest sequence, with `columns` key tiles if given; None without a density."""
    if density is None:
        return None
    tiles = (-(-max(q_lengths, default=0) // MASK_TILE), columns or max(1, -(-max(lengths, default=0) // MASK_TILE)))
    return random_block_mask((len(q_lengths), heads, *tiles), density, generator)


def _ragged_queries(
    lengths: list[int], starts: Tensor, padding_rows: int, fill: float, heads: int, head_dim: int, dtype: str, logit_std: float, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Q with `padding_rows` rows of no sequence behind it, and its scales [B, Hq, S] if it is FP8; what belongs to no query holds `fill`."""
    live, row_scale = queries(sum(lengths), heads, head_dim, dtype, logit_std, generator)
    q_scale = None
    if row_scale is not None:
        padded = -(-max(lengths, default=0) // Q_SCALE_MULTIPLE) * Q_SCALE_MULTIPLE
        q_scale = torch.full((len(lengths), heads, padded), fill)
        for b, length in enumerate(lengths):
            q_scale[b, :, :length] = row_scale[starts[b] : starts[b + 1]].T
    return _padded(live, padding_rows, fill), q_scale


def random_block_mask(shape: tuple[int, ...], density: float, generator: torch.Generator) -> Tensor:
    """Bytes of which `density` are not 0, and those of any value; the first query tile of the first head keeps nothing."""
    kept = torch.rand(shape, generator=generator) < density
    mask = torch.where(kept, torch.randint(1, 256, shape, generator=generator), 0).to(torch.uint8)
    if mask.numel():
        mask[0, 0, 0] = 0
    return mask


def _padded(live: Tensor, rows: int, fill: float) -> Tensor:
    """`live` and `rows` more rows full of `fill`."""
    padded = torch.full((len(live) + rows, *live.shape[1:]), fill).to(live.dtype)
    padded[: len(live)] = live
    return padded
