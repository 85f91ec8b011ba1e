"""Random attention problems over paged caches, for decode and for prefill."""

import math
from collections.abc import Iterable
from typing import Self

import torch
from attrs import evolve, fields, frozen
from torch import Tensor

from tle_attn.oracle import attention, quantise_e4m3
from tle_attn.testing.paged import PagedCache, make_paged_cache, spread

#: The CUDA reference wants the token axis of prefill q scales in multiples of this.
Q_SCALE_MULTIPLE = 128


@frozen(eq=False, kw_only=True)
class PagedProblem:
    """A batch of queries and the paged cache that they attend to, laid out as the kernels take it."""

    q: Tensor  #: [T, Hq, D] bf16 or e4m3
    k_cache: Tensor  #: [pages, page, Hkv, D], an NHD view whatever the layout in memory
    v_cache: Tensor
    block_ids: Tensor  #: int32 [B, columns]
    kv_lens: Tensor  #: int32 [B], this step's tokens included
    q_scale: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None

    @property
    def is_fp8(self) -> bool:
        return self.q.dtype == torch.float8_e4m3fn

    def new_output(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """An output [T, Hq, D] full of NaN: what a kernel does not write shows."""
        return torch.full(self.q.shape, math.nan, dtype=dtype, device=self.q.device)

    def to(self, device: torch.device | str) -> Self:
        """The same problem on another device, strides kept."""
        moved = {field.name: getattr(self, field.name) for field in fields(type(self))}
        if self.k_scale is not None and self.k_scale.dtype == torch.float8_e4m3fn:
            moved["k_cache"], moved["k_scale"] = _moved_together(self.k_cache, self.k_scale, device)
        return evolve(self, **{name: value.to(device) if isinstance(value, Tensor) else value for name, value in moved.items()})

    def _reference(self, options: dict) -> tuple[Tensor, Tensor | None]:
        options.setdefault("p_quant", "e4m3" if self.is_fp8 else None)
        scales = {"q_scale": self.q_scale, "k_scale": self.k_scale, "v_scale": self.v_scale}
        return attention(self.q, self.k_cache, self.v_cache, self.block_ids, self.kv_lens, **scales, **options)


@frozen(eq=False, kw_only=True)
class DecodeProblem(PagedProblem):
    """`query_tokens` queries for each sequence: T = B query_tokens.  q_scale [T, Hq]."""

    query_tokens: int

    def reference(self, **options) -> tuple[Tensor, Tensor | None]:
        """(out, lse) of `tle_attn.oracle.attention`; FP8 problems quantise P unless told otherwise."""
        return self._reference({"query_tokens": self.query_tokens, **options})

    def name_row(self, row: int) -> str:
        """The query row in words, for failures."""
        sequence, query = divmod(row, self.query_tokens)
        return f"sequence {sequence} with kv_len {int(self.kv_lens[sequence])}, query {query} of {self.query_tokens}"


@frozen(eq=False, kw_only=True)
class PrefillProblem(PagedProblem):
    """Ragged queries, and maybe rows after them that belong to no sequence.  q_scale [B, Hq, S]."""

    cu_seqlens_q: Tensor  #: int32 [B + 1]

    @property
    def max_q_len(self) -> int:
        """Queries of the longest sequence."""
        return int(self.cu_seqlens_q.diff().max())

    @property
    def num_queries(self) -> int:
        """Rows of q that sequences own."""
        return int(self.cu_seqlens_q[-1])

    def reference(self, **options) -> tuple[Tensor, Tensor | None]:
        """(out, lse) of `tle_attn.oracle.attention`; FP8 problems quantise P unless told otherwise."""
        return self._reference({"cu_seqlens_q": self.cu_seqlens_q, **options})

    def name_row(self, row: int) -> str:
        """The query row in words, for failures."""
        if row >= self.num_queries:
            return "a row of no sequence"
        sequence = int((self.cu_seqlens_q <= row).sum()) - 1
        start, end = self.cu_seqlens_q[sequence : sequence + 2].tolist()
        return f"sequence {sequence} with kv_len {int(self.kv_lens[sequence])}, query {row - start} of {end - start}"


def make_decode_problem(
    kv_lens: Iterable[int],
    *,
    query_tokens: int = 1,
    heads: tuple[int, int] = (8, 1),
    head_dim: int = 128,
    page: int = 64,
    dtype: str = "bf16",
    layout: str = "NHD",
    quant: int | None = None,
    logit_std: float = 1.0,
    seed: int = 0,
    poison: bool = True,
    extra_pages: int = 3,
    device: torch.device | str = "cpu",
) -> DecodeProblem:
    """A random decode problem; see `make_paged_cache` for the cache, with K scales of quant 0 in the K cache's pages.

    `kv_lens`: tokens of each sequence, this step's included, 0 allowed.  `heads`: (Hq, Hkv).  Scores have a standard
    deviation of about `logit_std`.  Equal seeds give equal live data on every device, in every layout, poisoned or not.
    """
    lengths = list(kv_lens)
    generator = torch.Generator().manual_seed(seed)
    cache = make_paged_cache(
        lengths,
        generator,
        heads=heads[1],
        head_dim=head_dim,
        page=page,
        dtype=dtype,
        quant=quant,
        layout=layout,
        scales_in_cache=True,
        poison=poison,
        extra_pages=extra_pages,
    )
    q, q_scale = _queries(len(lengths) * query_tokens, heads[0], head_dim, dtype, logit_std, generator)
    tensors = {**_tensors(cache), "q": q, "q_scale": q_scale, "kv_lens": torch.tensor(lengths, dtype=torch.int32)}
    return DecodeProblem(query_tokens=query_tokens, **tensors).to(device)


def make_prefill_problem(
    q_lens: Iterable[int],
    kv_lens: Iterable[int],
    *,
    padding_rows: int = 0,
    heads: tuple[int, int] = (8, 1),
    head_dim: int = 128,
    page: int = 64,
    dtype: str = "bf16",
    layout: str = "NHD",
    quant: int | None = None,
    logit_std: float = 1.0,
    seed: int = 0,
    poison: bool = True,
    extra_pages: int = 3,
    device: torch.device | str = "cpu",
) -> PrefillProblem:
    """A random prefill problem: sequence b has q_lens[b] queries (0 allowed), the last tokens of its kv_lens[b].

    As `make_decode_problem`, but K scales of quant 0 are apart from the cache.  `padding_rows` rows at the end of q, and
    q scales of no query, are poison too.
    """
    lengths, q_lengths = list(kv_lens), list(q_lens)
    generator = torch.Generator().manual_seed(seed)
    cache = make_paged_cache(
        lengths,
        generator,
        heads=heads[1],
        head_dim=head_dim,
        page=page,
        dtype=dtype,
        quant=quant,
        layout=layout,
        scales_in_cache=False,
        poison=poison,
        extra_pages=extra_pages,
    )
    starts = torch.tensor([0, *q_lengths]).cumsum(0)
    fill = math.nan if poison else 0.0
    live, row_scale = _queries(sum(q_lengths), heads[0], head_dim, dtype, logit_std, generator)
    q = torch.full((len(live) + padding_rows, *live.shape[1:]), fill).to(live.dtype)
    q[: len(live)] = live
    q_scale = None
    if row_scale is not None:
        padded = -(-max(q_lengths, default=0) // Q_SCALE_MULTIPLE) * Q_SCALE_MULTIPLE
        q_scale = torch.full((len(q_lengths), heads[0], padded), fill)
        for b, length in enumerate(q_lengths):
            q_scale[b, :, :length] = row_scale[starts[b] : starts[b + 1]].T
    tensors = {**_tensors(cache), "q": q, "q_scale": q_scale, "kv_lens": torch.tensor(lengths, dtype=torch.int32)}
    return PrefillProblem(cu_seqlens_q=starts.int(), **tensors).to(device)


def _tensors(cache: PagedCache) -> dict[str, Tensor | None]:
    return {field.name: getattr(cache, field.name) for field in fields(PagedCache)}


def _queries(rows: int, num_heads: int, head_dim: int, dtype: str, logit_std: float, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """Queries of standard deviation `logit_std`, with a scale per row and head if they are FP8."""
    q = torch.randn(rows, num_heads, head_dim, generator=generator) * logit_std
    if dtype == "bf16":
        return q.bfloat16(), None
    return quantise_e4m3(q * spread((rows, num_heads, 1), generator), axis=2)


def _moved_together(k_cache: Tensor, k_scale: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """A cache and the scales in its own pages, still in one storage with the same strides."""
    page = k_cache.shape[1]
    both = k_cache.as_strided((k_cache.shape[0], page + k_scale.shape[1], *k_cache.shape[2:]), k_cache.stride()).to(device)
    return both[:, :page], both[:, page:]
