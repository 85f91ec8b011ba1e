"""Batches that lead a kernel to the edges of its barrier protocol: where a ring starts, fills, wraps around and has wrapped several times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from ..random_problems import prefill_problem_for, problem_for

if TYPE_CHECKING:
    from ..spec import Kernel


#: a sequence is cut into at most as many parts to explore how they are merged
MOST_PARTS = 33


@frozen
class Batch:
    """Sequences of these (queries, keys) on a device of `sms` multiprocessors; a decode kernel's queries are those of its problem."""

    name: str
    pairs: tuple[tuple[int, int], ...]
    sms: int = 4
    options: dict[str, Any] = {}

    @property
    def shown(self) -> str:
        return "(queries, keys) " + ", ".join(f"({q}, {kv})" for q, kv in self.pairs)

    def problem(self, kernel: Kernel) -> Any:
        """A random problem of these lengths."""
        if kernel.mainloop.PHASE == "prefill":
            return prefill_problem_for(kernel, self.pairs, **self.options)
        return problem_for(kernel, [kv for _, kv in self.pairs], **self.options)


def key_tile(kernel: Kernel) -> int:
    """Keys of a tile of the ring."""
    return int(kernel.constants["TILE"].value)


def ring_edges(kernel: Kernel) -> tuple[int, ...]:
    """Tile counts at which a ring of S stages starts, fills, wraps around and has wrapped several times."""
    stages = kernel.mainloop.ring.stages
    return tuple(sorted({0, 1, stages - 1, stages, stages + 1, 3 * stages + 1}))


def batches_of(kernel: Kernel) -> list[Batch]:
    """Batches for `tle_attn.checks.explore`."""
    return _prefill_batches(kernel) if kernel.mainloop.PHASE == "prefill" else _decode_batches(kernel)


def _decode_batches(kernel: Kernel) -> list[Batch]:
    """Tasks that have the ring's edges as lengths, and sequences that are split into few and into many parts."""
    mainloop, tile, queries = kernel.mainloop, key_tile(kernel), kernel.problem.query_tokens
    edges, least = ring_edges(kernel), mainloop.schedule.min_tokens // tile
    ctas = mainloop.ctas_per_sm
    # more parts than every threshold, unless that is more than anybody would wait for
    many = min(max(mainloop.reduce.poll_above + 1, (getattr(mainloop.reduce, "slice_above", None) or 0) + 1, 3), MOST_PARTS)

    def of(*tiles: int) -> tuple[tuple[int, int], ...]:
        # tiles that are full, and tiles that are not
        return tuple((queries, max(n * tile - 5 * (i % 3), 0)) for i, n in enumerate(tiles))

    return [
        # long sequences for every slot make the share of a slot so large that none is cut
        Batch("short sequences for every slot", of(*edges, *[edges[-1]] * (4 * ctas))),
        Batch("a sequence for few parts", of(0, 2 * least + 1, 1)),
        Batch("a sequence for many parts", of(many * least, *edges[:2]), sms=-(-(many + 3) // ctas)),
    ]


def _prefill_batches(kernel: Kernel) -> list[Batch]:
    """Units of work with the ring's edges as key tiles, one after the other on few CTAs; a single sequence, which is not planned; and nothing to do."""
    from ..verify import oracle_options

    tile, edges = key_tile(kernel), ring_edges(kernel)
    decode_like = tuple((1 + 63 * (i % 3), max(n * tile - 5 * (i % 3), 0)) for i, n in enumerate(edges))
    made = [
        Batch("units of every length", (*decode_like, (0, 7), (130, 2)), sms=3),
        Batch("one sequence of several query tiles", ((2 * tile + 3, 3 * tile + 3),), sms=2),
        Batch("sequences of several query tiles", ((2 * tile + 3, 2 * tile + 3), (tile, 3 * tile)), sms=3),
    ]
    if window := oracle_options(kernel).get("window"):
        made.append(Batch("keys from before a window", ((tile + 3, window + 2 * tile + 3), (1, window + tile)), sms=3))
    if "block_mask" in kernel.arguments:
        pairs = ((tile + 1, edges[-1] * tile + 1), (1, 1), (2 * tile, 2 * tile))
        made += [Batch(f"a block mask that keeps {density:.0%}", pairs, sms=3, options={"mask_density": density}) for density in (0.0, 0.3)]
    return made
