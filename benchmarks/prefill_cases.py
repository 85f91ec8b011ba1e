"""Cases of the prefill benchmark: what is attended to, apart from which kernel does it."""

from __future__ import annotations

import random

import torch
from attrs import evolve, frozen

from tle_attn.report.floor import visible_pairs

#: queries and keys that a tile of work, and a byte of a block mask, stand for
TILE = 128
K = 1024

#: (element type, quant type): bf16; fp8 with K and V scales per tensor; fp8 with K scales per token and head
KINDS = (("bf16", None), ("fp8", 1), ("fp8", 0))
GROUPS = ("fp8", "bf16", "contiguous", "square", "mask", "ragged")


@frozen(kw_only=True)
class Case:
    """A batch and the format of its tensors.

    Attributes:
        group: which of GROUPS it is in.
        name: what its lengths, and its mask, are called.
        pairs: (queries, keys) of each sequence.
        heads: (query heads, key/value heads).
        paged: pages of 64 tokens; else K and V in rows, beside the queries.
        density: share of the tiles that a block mask keeps; None for no mask.
        reference: numbers and mask as the CUDA reference's benchmark makes them; else unit variance, scaled to use all of e4m3, and a mask at random.
    """

    group: str
    name: str
    pairs: tuple[tuple[int, int], ...]
    dtype: str = "bf16"
    quant: int | None = None
    heads: tuple[int, int] = (32, 4)
    layout: str = "NHD"
    paged: bool = True
    density: float | None = None
    reference: bool = False

    @property
    def masked(self) -> bool:
        return self.density is not None

    @property
    def kind(self) -> str:
        return self.dtype if self.quant is None else f"{self.dtype} quant {self.quant}"

    @property
    def square(self) -> bool:
        """Equal sequences of as many queries as keys: what other libraries' causal attention computes too."""
        return len(set(self.pairs)) == 1 and self.pairs[0][0] == self.pairs[0][1]

    @property
    def rows(self) -> int:
        return sum(q for q, _ in self.pairs)

    @property
    def label(self) -> str:
        return f"{self.group} {self.name} {self.kind} {self.layout if self.paged else 'rows'}"

    @property
    def flops(self) -> int:
        """Operations of both products, for pairs that the causal rule leaves; a block mask not counted."""
        return 4 * 128 * self.heads[0] * sum(visible_pairs(q, kv) for q, kv in self.pairs)

    @property
    def tiles(self) -> int:
        """128 x 128 tiles that the causal rule leaves, all or part of it, of all query heads."""
        return self.heads[0] * sum(int(frontier(q, kv).add(1).sum()) for q, kv in self.pairs)


def frontier(queries: int, keys: int) -> torch.Tensor:
    """Last key tile that each query tile sees, -1 where it sees none."""
    ends = torch.arange(TILE, queries + TILE, TILE).clamp(max=queries)
    return torch.div(keys - queries + ends - 1, TILE, rounding_mode="floor").clamp(min=-1)


def square(length: int, batch: int = 1) -> tuple[tuple[int, int], ...]:
    return ((length, length),) * batch


def all_cases() -> list[Case]:
    """Every case, the reference's first."""
    cases = []
    short = {"127": square(127), "512/4k": ((512, 4 * K),), "512/32k": ((512, 32 * K),)}
    for name, pairs in short.items():
        for quant in (0, 1):
            for density in (None, 0.25):
                cases += [Case(group="fp8", name=name + (" masked" if density else ""), pairs=pairs, dtype="fp8", quant=quant, density=density, layout=layout, reference=True)
                          for layout in ("NHD", "HND")]  # fmt: skip
    squares = {"2k": square(2 * K), "8k": square(8 * K)}
    cases += [Case(group="bf16", name=name, pairs=pairs, layout=layout, reference=True) for name, pairs in {**short, **squares}.items() for layout in ("NHD", "HND")]
    cases += [Case(group="contiguous", name=name, pairs=pairs, paged=False, reference=True) for name, pairs in {"127": short["127"], **squares}.items()]
    for dtype, quant in KINDS:
        cases += [Case(group="square", name=f"{n}k", pairs=square(n * K), dtype=dtype, quant=quant) for n in (8, 16, 32)]
        cases.append(Case(group="square", name="4x4k", pairs=square(4 * K, 4), dtype=dtype, quant=quant, heads=(32, 8)))
    for dtype, quant in KINDS:
        cases += [Case(group="mask", name=f"8k keep {d:.0%}", pairs=square(8 * K), dtype=dtype, quant=quant, density=d) for d in (1.0, 0.5, 0.25, 0.1)]
    lengths = random.Random(5).choices(range(16, 4 * K + 1), k=64)
    ragged = {"8k+15x512": square(8 * K) + square(512, 15), "64 random": tuple((n, n) for n in lengths)}
    cases += [Case(group="ragged", name=name, pairs=pairs, dtype=dtype, quant=quant) for dtype, quant in KINDS for name, pairs in ragged.items()]
    return cases


def dense_case(case: Case) -> Case:
    """The case whose rate masked and ragged ones are compared with: one long square of the same kind, without a mask."""
    return evolve(case, group="square", name="8k", pairs=square(8 * K), density=None, layout="NHD", heads=(32, 4), reference=False)


def select(groups: list[str], names: list[str], layouts: list[str]) -> list[Case]:
    """Cases of these groups whose label holds one of `names` (all without names), and before them what they are compared with."""
    chosen = [c for c in all_cases() if c.group in groups and c.layout in layouts and (not names or any(n in c.label for n in names))]
    wanted = [dense_case(c) for c in chosen if c.group in ("mask", "ragged")]
    missing = [c for c in dict.fromkeys(wanted) if c not in chosen]
    return missing + chosen
