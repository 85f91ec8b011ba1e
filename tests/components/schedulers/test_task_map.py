"""Task map: the records of the planner kernel against a planner in Python, and what every map must promise."""

import random

import pytest
import torch
from attrs import frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import floor
from tle_attn.components.schedulers.task_map import RECORD, TaskMap
from tle_attn.errors import SpecError
from tle_attn.runtime.decode import task_capacity
from tle_attn.spec import Argument
from tle_attn.spec.tasks import EVICT_SHARES
from tle_attn.testing.mini_kernel import mini_kernel, run_kernel

#: one sequence needs all of its tiles; the entry reads the map back as the attention kernel does
TEXT = """
@jit
def tile_range(args, seq, kv_len):
    return kv_len * 0, cdiv(kv_len, TILE)


@jit
def test(args):
    seq, head, first, count, kv_len, slot, first_slot, parts, flags = task(args)
    out = args.read + program_id(0) * RECORD
    store(out, seq * args.kv_heads + head)
    store(out + 1, first)
    store(out + 2, count)
    store(out + 3, kv_len)
    store(out + 4, slot)
    store(out + 5, first_slot)
    store(out + 6, parts)
    store(out + 7, flags)
"""


@frozen
class Record:
    """A task of the attention kernel."""

    pair: int
    first: int
    tiles: int
    kv_len: int
    slot: int
    first_slot: int
    parts: int
    flags: int


def planned(lengths, kv_heads, slots, *, min_tokens=512, new_tokens=0, l2_tiles=10**6, target="cpu", device="cpu", extra_tasks=0) -> list[Record]:
    """Records of the planner kernel, from a grid that the runtime's rule makes."""
    kernel = mini_kernel(TEXT, TaskMap(min_tokens=min_tokens), arguments=[Argument("read", "*i32", "records as `task` reads them")])
    tasks = task_capacity(slots, len(lengths), kv_heads) + extra_tasks
    records = torch.full((tasks, RECORD), 77, dtype=torch.int32, device=device)
    read = torch.full((tasks, RECORD), -99, dtype=torch.int32, device=device)
    numbers = {"new_tokens": new_tokens, "batch": len(lengths), "kv_heads": kv_heads, "slots": slots, "l2_tiles": l2_tiles}
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    run_kernel(kernel, {"tasks": records, "kv_lens": lens, **numbers}, grid=(tasks,), entry="plan_tasks", target=target)
    run_kernel(kernel, {"tasks": records, "read": read, "kv_heads": kv_heads}, grid=(tasks,), target=target)
    assert torch.equal(records[:, 1:7], read[:, 1:7]), "`task` returns these words as they are"
    return [Record(*row) for row in read.tolist()]


def tiles_of(length: int) -> int:
    return -(-length // 64)


def chunk_of(tiles: list[int], slots: int, least: int) -> int:
    """The smallest chunk from the least up that needs no more tasks than slots; where the sequences alone are too many, the average share of a slot; and where
    many sequences have much to read, a quarter of that share."""
    if 2 * len(tiles) >= slots and sum(tiles) >= 4 * 2 * least * slots:
        return max(-(-sum(tiles) // (4 * slots)), least)
    if max(tiles) > least and sum(tiles) <= 2 * slots:
        least = least // 2
    low = max(-(-sum(tiles) // slots), least)
    if len(tiles) >= slots:
        return low
    while sum(max(1, -(-t // low)) for t in tiles) > slots:
        low += 1
    return low


def check(records: list[Record], lengths: list[int], kv_heads: int, slots: int, min_tokens: int = 512) -> None:
    """What every map promises."""
    active = [r for r in records if r.slot != -2]
    assert all(r.tiles == 0 for r in records if r.slot == -2), "idle CTAs have nothing to do"
    per_head = max(slots // kv_heads, 1)
    for pair in range(len(lengths) * kv_heads):
        tiles = tiles_of(lengths[pair // kv_heads])
        parts = sorted((r for r in active if r.pair == pair), key=lambda r: r.first)
        covered = [t for r in parts for t in range(r.first, r.first + r.tiles)]
        assert covered == list(range(tiles)), "every tile once, and nothing else"
        assert {r.parts for r in parts} == {len(parts)} and {r.kv_len for r in parts} == {lengths[pair // kv_heads]}
        assert max(r.tiles for r in parts) - min(r.tiles for r in parts) <= 1, "equal parts"
        if len(parts) == 1:
            assert parts[0].slot == -1
        else:
            assert [r.slot for r in parts] == [parts[0].first_slot + i for i in range(len(parts))], "partials in the order of the keys"
    assert len(active) == sum(r.parts for r in active if r.slot == r.first_slot or r.slot == -1), "no task of a sequence that is not there"
    slots_used = [r.slot for r in active if r.slot >= 0]
    assert len(slots_used) == len(set(slots_used)) and all(s < len(records) for s in slots_used), "partials of their own, inside the workspace"
    if 2 * len(lengths) < per_head:
        assert len(active) <= kv_heads * per_head, "all resident at once"
    tiles = [tiles_of(n) for n in lengths]
    chunk = chunk_of(tiles, per_head, min_tokens // 64)
    assert len(active) == kv_heads * sum(max(1, -(-t // chunk)) for t in tiles), "as few and as small tasks as the planner in Python"
    assert max(r.tiles for r in active) <= chunk, "balanced: no task longer than the chunk"
    resident = len(active) <= slots
    assert {r.flags & 1 for r in active} == {int(resident)}


LENGTHS = st.lists(st.one_of(st.just(0), st.integers(1, 200), st.integers(1, 10_000), st.integers(100_000, 1_000_000)), min_size=1, max_size=9)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=LENGTHS, kv_heads=st.integers(1, 3), slots=st.integers(1, 24), min_tokens=st.sampled_from([64, 512, 1024]))
def test_any_batch(lengths, kv_heads, slots, min_tokens):
    check(planned(lengths, kv_heads, slots, min_tokens=min_tokens), lengths, kv_heads, slots, min_tokens)


@pytest.mark.parametrize("lengths,kv_heads,slots", [
    ([0], 1, 8), ([1], 1, 8), ([64 * 1024] + [4096] * 7, 1, 132), ([128] * 5 + [4096] * 5, 2, 16), ([512] * 8, 1, 8), ([100_000], 3, 264), ([0, 0, 5000, 0], 1, 6),
])  # fmt: skip
def test_batches_by_hand(target, device, lengths, kv_heads, slots):
    check(planned(lengths, kv_heads, slots, target=target, device=device), lengths, kv_heads, slots)


def test_more_sequences_than_the_planner_looks_at_together():
    """Sequences past a block of 256 keep their places."""
    lengths = [64 * (1 + i % 3) for i in range(259)]
    lengths[256] = 3000
    records = planned(lengths, 1, 4)
    check(records, lengths, 1, 4)
    assert [r for r in records if r.pair == 258][0].kv_len == lengths[258]


def test_one_long_sequence_is_cut_for_all_slots(target, device):
    records = planned([64 * 1024], 1, 16, target=target, device=device)
    assert sorted(r.tiles for r in records) == [64] * 16 and {r.parts for r in records} == {16}


@pytest.mark.parametrize("length,parts", [
    (4096, 8),  # 64 tiles are more than two a slot: tasks of eight
    (2048, 8),  # 32 tiles: tasks of four
    (576, 3),  # nine tiles
    (512, 1),  # eight tiles are not cut
])  # fmt: skip
def test_tasks_are_no_shorter_than_the_minimum(length, parts):
    """Eight tiles, or four where there are at most two tiles for each slot and a sequence is cut anyway."""
    assert {r.parts for r in planned([length], 1, 16) if r.slot != -2} == {parts}


def test_new_tokens_are_added(target, device):
    records = planned([63, 64], 1, 4, new_tokens=1, target=target, device=device)
    assert [(r.kv_len, r.tiles) for r in records if r.slot == -1] == [(64, 1), (65, 2)]


@pytest.mark.parametrize(("tiles", "kept"), [(10**6, 32), (20, 32), (19, 30), (10, 16), (9, 14), (5, 8), (1, 1), (0, 0)])
def test_what_the_l2_cache_can_keep(tiles, kept):
    """640 tokens are 10 tiles a head; sixteenths, rounded down, up to twice all."""
    assert {r.flags // 2 for r in planned([640], 1, 4, l2_tiles=tiles) if r.slot != -2} == {kept}


@pytest.mark.parametrize("nbytes", [1, 2])
def test_the_read_floor_drops_as_many_tiles(nbytes, monkeypatch):
    """Shares of `benchmarks.floor`, which counts pages, are those of maps, which count tiles of one byte an element."""
    rng = random.Random(seed := random.randrange(1 << 31))
    print("seed", seed)
    for _ in range(20):
        tiles, l2_tiles = rng.randint(1, 300), 2 * rng.randint(0, 300)
        monkeypatch.setattr("tle_attn.runtime.decode.L2_KEPT", 0.5)
        share = floor.leaving(tiles, 64 * 128 * nbytes, 2 * l2_tiles * 2 * 64 * 128)
        kept = next(r.flags // 2 for r in planned([64 * tiles], 1, 4, l2_tiles=l2_tiles) if r.slot != -2)
        assert share == max(EVICT_SHARES - kept // nbytes, 0)


def test_spare_ctas_are_idle():
    assert sum(r.slot == -2 for r in planned([10, 20], 1, 8, extra_tasks=5)) == 8 + 5 - 2


@pytest.mark.parametrize("value", [0, 63, 100])
def test_tasks_are_whole_tiles(value):
    with pytest.raises(SpecError, match=f"min_tokens cannot be {value}"):
        TaskMap(min_tokens=value)
