"""Selected tiles: a query sees the key tiles of a list alone, and no other is loaded; the list is made at run time (block-sparse decode, as NSA and MoBA serve)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen

from tle_attn.dialect import as_int64, jit, load, minimum, where
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, Constant, Problem

TILE = 64
#: ordinal that stands for no tile: its tokens lie behind every sequence, and are masked as what follows a sequence's last token is
NOWHERE = 1 << 21


@frozen(kw_only=True)
class SelectedTiles(Block):
    """`run` takes selected_tiles, int32 [batch, kv heads, width], and selected_counts, int32 [batch]: entries 0 .. count - 1 of a list are key tiles
    (tokens 64 t .. 64 t + 63), each once, in ascending order; -1 in front fills up the list of a head that selects fewer.

    Used with `causal`, which ends the keys; a tile that the list has not is not read, not even its page ids.  Every query token of a step has the same list.
    The task map depends on the counts: after a change of them, plan again; lists may change freely, but with `schedule.page_ids = true`, which puts their pages into the map.
    """

    KIND = "mask"
    NAME = "selected_tiles"
    DECODE_ONLY = "a list names tiles of 64 tokens for all queries of a step, and decode's loader walks it"
    HOOKS = {"last_tile": "selected_count", "page_numbers": "selected_pages", "tile_token": "selected_token", "tile_end": "selected_end"}

    def check(self, problem: Problem) -> None:
        if problem.page > TILE:
            raise SpecError("tiles cannot be selected in pages of 128", key="problem.page", value=problem.page, allowed="16, 32, 64", reason="a list names tiles of 64 tokens, and the loader walks whole pages")

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"NOWHERE": Constant(NOWHERE, "a tile behind every sequence, in place of no tile")}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (
            Argument("selected_tiles", "*i32", "key tiles that each head sees, ascending, -1 for none [batch, kv heads, width]", shape=("batch", "kv_heads", None)),
            Argument("selected_counts", "*i32", "entries of a sequence's lists [batch]", shape=("batch",)),
            Argument("selected_width", "i32", "entries that a list has room for", extent_of=("selected_tiles", 2)),
        )

    def example_arguments(self, case: Any, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """About half of the tiles of each head, heads with more and with fewer, the last tile in most lists; what is behind a list is no tile."""
        tiles = (-(-case.kv_lens.long() // TILE)).tolist()
        heads = case.k_cache.shape[2]
        lists = torch.full((len(tiles), heads, max([*tiles, 1]) + 2), 2**30, dtype=torch.int32)
        counts = torch.zeros(len(tiles), dtype=torch.int32)
        for b, n in enumerate(tiles):
            chosen = [torch.nonzero(torch.rand(n, generator=generator) < 0.5 * torch.rand(1, generator=generator) + 0.4).flatten() for _ in range(heads)]
            counts[b] = max(len(c) for c in chosen)
            for head, c in enumerate(chosen):
                lists[b, head, : counts[b]] = -1
                lists[b, head, counts[b] - len(c) : counts[b]] = c.int()
        return {"selected_tiles": lists, "selected_counts": counts}

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        def selected(key: torch.Tensor, query: torch.Tensor, head: torch.Tensor, sequence: int) -> torch.Tensor:
            lists = given["selected_tiles"][sequence, :, : int(given["selected_counts"][sequence])].to(key.device)
            return (key[:, None] // TILE == lists[head // problem.group]).any(-1)

        return {"mask_steps": (selected,)}


@jit
def selected_tile(args, tile, seq, head):
    """Entry `tile` of a list; behind its end, and where it says none, a tile that no sequence has."""
    count = load(args.selected_counts + seq)
    found = load(args.selected_tiles + as_int64(seq * args.kv_heads + head) * args.selected_width + tile, mask=tile < count, other=-1)
    return where(found < 0, NOWHERE, found)


@jit
def selected_count(args, last, seq):
    """Tiles that a sequence is worked through in; none has more than its keys fill."""
    return minimum(load(args.selected_counts + seq), last)


@jit
def selected_pages(args, pages, seq, head):
    """The page of the sequence for each page of its list."""
    return selected_tile(args, pages // TILE_PAGES, seq, head) * TILE_PAGES + pages % TILE_PAGES


@jit
def selected_token(args, token, seq, head):
    """First token of a tile by its place in the list, TILE tokens to a tile."""
    return selected_tile(args, token // TILE, seq, head) * TILE


@jit
def selected_end(args, end, seq, head):
    """Token after a tile by its end in the list."""
    return selected_token(args, end - TILE, seq, head) + TILE
