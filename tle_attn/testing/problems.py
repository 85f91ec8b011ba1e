"""Random attention problems over paged caches: what those of all phases share, and decode."""

import math
from collections.abc import Iterable
from typing import Any, Self

import torch
from attrs import evolve, fields, frozen
from torch import Tensor

from tle_attn.oracle import attention, quantise_e4m3
from tle_attn.oracle.scales import check_cache_scale
from tle_attn.testing.paged import PagedCache, Quant, make_paged_cache, spread


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

    @property
    def geometry(self) -> dict[str, Any]:
        """What a plan for this problem is told, as keyword arguments."""
        return {"batch": len(self.kv_lens), "query_heads": self.q.shape[1], "kv_heads": self.k_cache.shape[2]}

    @property
    def lengths(self) -> dict[str, Any]:
        """What `Plan.schedule` takes, as keyword arguments."""
        return {"kv_lens": self.kv_lens}

    @property
    def scales(self) -> dict[str, Tensor]:
        """Scales as keyword arguments of `Plan.run`: none for bf16."""
        given = {"q_scale": self.q_scale, "k_scale": self.k_scale, "v_scale": self.v_scale}
        return {name: scale for name, scale in given.items() if scale is not None}

    @property
    def inputs(self) -> dict[str, Any]:
        """All tensors as keyword arguments of `Plan.run`."""
        return {**{name: getattr(self, name) for name in ("q", "k_cache", "v_cache", "block_ids", "kv_lens")}, **self.scales}

    def new_output(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """An output [T, Hq, Dv] full of NaN: what a kernel does not write shows."""
        return torch.full((*self.q.shape[:2], self.v_cache.shape[-1]), math.nan, dtype=dtype, device=self.q.device)

    def to(self, device: torch.device | str) -> Self:
        """The same problem on another device, strides kept."""
        moved = {field.name: getattr(self, field.name) for field in fields(type(self))}
        for cache, scale in (("k_cache", "k_scale"), ("v_cache", "v_scale")):
            if moved[scale] is not None and moved[scale].dtype == torch.float8_e4m3fn:
                moved[cache], moved[scale] = _moved_together(moved[cache], moved[scale], device)
        return evolve(self, **{name: value.to(device) if isinstance(value, Tensor) else value for name, value in moved.items()})

    def weight_error(self, unit: float, **options) -> Tensor:
        """Absolute error [T, Hq], as the norm of an output row, that weights rounded to multiples of `unit` may bring; `options` as for `reference`.

        Half a unit times the root of the sum of |v|**2 over the keys that a query sees: roundings are independent, and random values nearly orthogonal.
        Scales of V per token count as their largest, because they may be part of the weights.
        """
        scale = check_cache_scale("v_scale", self.v_scale, self.v_cache)
        largest = 1.0 if scale is None else float(scale[scale.isfinite()].max())
        squares = evolve(self, v_cache=self.v_cache.double() ** 2, v_scale=None)
        everything = options | {"sigmoid_bias": 1e300, "p_quant": None, "lse_base": None}  # a weight of 1 for each key that counts
        return unit / 2 * largest * squares.reference(**everything)[0].sum(-1).sqrt()

    def _reference(self, options: dict) -> tuple[Tensor, Tensor | None]:
        options.setdefault("p_quant", "e4m3" if self.is_fp8 else None)
        scales = {"q_scale": self.q_scale, "k_scale": self.k_scale, "v_scale": self.v_scale}
        return attention(self.q, self.k_cache, self.v_cache, self.block_ids, self.kv_lens, **scales, **options)


@frozen(eq=False, kw_only=True)
class DecodeProblem(PagedProblem):
    """`query_tokens` queries for each sequence: T = B query_tokens.  q_scale [T, Hq]."""

    query_tokens: int

    @property
    def lengths(self) -> dict[str, Any]:
        return {**super().lengths, "block_ids": self.inputs["block_ids"]}

    def reference(self, **options) -> tuple[Tensor, Tensor | None]:
        """(out, lse) of `tle_attn.oracle.attention`; FP8 problems quantise P unless told otherwise."""
        return self._reference({"query_tokens": self.query_tokens, **options})

    def name_row(self, row: int) -> str:
        """The query row in words, for failures."""
        sequence, query = divmod(row, self.query_tokens)
        return f"sequence {sequence} with kv_len {int(self.kv_lens[sequence])}, query {query} of {self.query_tokens}"


def make_decode_problem(
    kv_lens: Iterable[int],
    *,
    query_tokens: int = 1,
    heads: tuple[int, int] = (8, 1),
    head_dim: int = 128,
    value_dim: int | None = None,
    page: int = 64,
    dtype: str = "bf16",
    layout: str = "NHD",
    quant: Quant = None,
    logit_std: float = 1.0,
    seed: int = 0,
    poison: bool = True,
    extra_pages: int = 3,
    device: torch.device | str = "cpu",
) -> DecodeProblem:
    """A random decode problem; see `make_paged_cache` for the cache, with scales per token in the cache's own pages.

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
        value_dim=value_dim,
        page=page,
        dtype=dtype,
        quant=quant,
        layout=layout,
        scales_in_cache=True,
        poison=poison,
        extra_pages=extra_pages,
    )
    q, q_scale = queries(len(lengths) * query_tokens, heads[0], head_dim, dtype, logit_std, generator)
    tensors = {**tensors_of(cache), "q": q, "q_scale": q_scale, "kv_lens": torch.tensor(lengths, dtype=torch.int32)}
    return DecodeProblem(query_tokens=query_tokens, **tensors).to(device)


@frozen(eq=False, kw_only=True)
class ContiguousDecodeProblem(DecodeProblem):
    """K and V [B, room, Hkv, D] without pages: to the oracle, each sequence has one page, its own."""

    @property
    def inputs(self) -> dict[str, Any]:
        return {**super().inputs, "block_ids": None}


def make_contiguous_decode_problem(kv_lens: Iterable[int], *, page: int = 64, layout: str = "NHD", device: torch.device | str = "cpu", **options: Any) -> ContiguousDecodeProblem:
    """A random decode problem without pages; the room is that of the longest sequence and a little more, not a multiple of `page`.

    `options`: those of `make_decode_problem`.  Layout "HND" has heads before tokens in memory.
    """
    lengths = list(kv_lens)
    paged = make_decode_problem(lengths, page=max([*lengths, 1]) + page // 2 - 3, extra_pages=1, **options)
    unused = ({*range(len(paged.k_cache))} - {*paged.block_ids[paged.kv_lens > 0, 0].tolist()}).pop()
    table = torch.where(paged.kv_lens > 0, paged.block_ids[:, 0], unused).long()
    tensors = {name: getattr(paged, name) for name in ("q", "kv_lens", "q_scale", "k_scale", "v_scale", "query_tokens")}
    for name in ("k_cache", "v_cache"):
        rows = getattr(paged, name).view(torch.uint8)[table].view(paged.q.dtype)
        tensors[name] = rows.transpose(1, 2).contiguous().transpose(1, 2) if layout == "HND" else rows
    return ContiguousDecodeProblem(block_ids=torch.arange(len(lengths), dtype=torch.int32)[:, None], **tensors).to(device)


def tensors_of(cache: PagedCache) -> dict[str, Any]:
    """Its tensors by name."""
    return {field.name: getattr(cache, field.name) for field in fields(PagedCache)}


def queries(rows: int, num_heads: int, head_dim: int, dtype: str, logit_std: float, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """Queries of standard deviation `logit_std`, with a scale per row and head if they are FP8."""
    q = torch.randn(rows, num_heads, head_dim, generator=generator) * logit_std
    if dtype == "bf16":
        return q.bfloat16(), None
    return quantise_e4m3(q * spread((rows, num_heads, 1), generator), axis=2)


def _moved_together(cache: Tensor, scale: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """A cache and the scales in its own pages, still in one storage with the same strides."""
    page = cache.shape[1]
    both = cache.as_strided((cache.shape[0], page + scale.shape[1], *cache.shape[2:]), cache.stride()).to(device)
    return both[:, :page], both[:, page:]
