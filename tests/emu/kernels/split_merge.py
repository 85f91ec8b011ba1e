"""Kernel text of the emulator tests: split partial sums, merged by the last arriver or by polling CTAs."""
# ruff: noqa: F403, F405
from tle_attn.dialect.cpu import *

# ==== kernel text: the same for every target
ROWS = constexpr(8)
COLS = constexpr(64)


@jit
def store_partial(x, partial, seq, split, splits):
    r, c = tile_index(ROWS, COLS, 4)
    offsets = r[:, None] * COLS + c[None, :]
    slot = seq * splits + split
    value = load(x + slot * ROWS * COLS + offsets)
    store(partial + slot * ROWS * COLS + offsets, value * 2.0)


@jit
def merge_rows(partial, out, seq, splits, row, count):
    r, c = tile_index(1, COLS, 4)
    for i in range(count):
        offsets = (row + i + r[:, None]) * COLS + c[None, :]
        total = tile_zeros(1, COLS, 4)
        for s in range(splits):
            total += load(partial + (seq * splits + s) * ROWS * COLS + offsets, cache_modifier=".cg")
        store(out + seq * ROWS * COLS + offsets, total)


@jit
def last_arriver(x, partial, out, counter):
    split = program_id(0)
    seq = program_id(1)
    splits = num_programs(0)
    store_partial(x, partial, seq, split, splits)
    ticket = atomic_add(counter + seq, 1)
    if ticket == splits - 1:
        store(counter + seq, 0)
        merge_rows(partial, out, seq, splits, 0, ROWS)


@jit
def polling(x, partial, out, counter):
    split = program_id(0)
    seq = program_id(1)
    splits = num_programs(0)
    store_partial(x, partial, seq, split, splits)
    atomic_add(counter + 2 * seq, 1, sem="release")
    seen = load_acquire(counter + 2 * seq)
    while seen < splits:
        seen = load_acquire(counter + 2 * seq)
    share = ROWS // splits
    merge_rows(partial, out, seq, splits, split * share, share)
    ticket = atomic_add(counter + 2 * seq + 1, 1, sem="relaxed")
    if ticket == splits - 1:
        store(counter + 2 * seq, 0)
        store(counter + 2 * seq + 1, 0)


@jit
def tickets(x, partial, out, counter):
    split = program_id(0)
    seq = program_id(1)
    splits = num_programs(0)
    store_partial(x, partial, seq, split, splits)
    arrive_release(counter + 2 * seq)
    wait_at_least(counter + 2 * seq, splits)
    ticket = take_ticket(counter + 2 * seq + 1)
    share = ROWS // splits
    merge_rows(partial, out, seq, splits, split * share, share)
    reset_after(counter + 2 * seq, ticket, splits - 1)
