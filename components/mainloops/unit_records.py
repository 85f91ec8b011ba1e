"""Records of prefill's units: what the producer tells all roles of a unit (query tile, head) before its first key tile arrives."""

from __future__ import annotations

from tle_attn.dialect import (
    barrier_arrive,
    barrier_wait,
    cdiv,
    jit,
    maximum,
    minimum,
    reduce_max,
    smem_load,
    smem_store,
    tile_index,
    uniform,
    vec_index,
    where,
)

#: int32 words of a record
WORDS = 32
#: one at work, one prepared, and room for the producer to be a unit ahead of the slower consumer
RECORDS = 4


@jit
def word_of(work, item, i):
    """One word of the record of the CTA's `item`-th unit, in every thread."""
    return uniform(reduce_max(smem_load(work.slot(item % RECORDS).slot(i)), 0))


@jit
def describe(args, unit, units, only):
    """A unit's record, a negative sequence if there is no such unit, and the factors of its rows; what has to be loaded is on its way when this returns."""
    seq = -1
    q_head = 0
    q_start = 0
    row0 = 0
    q_len = 0
    kv_len = 0
    count = 0
    tile_0 = 0
    tile_1 = 0
    last = 0
    if unit < units * args.query_heads:
        seq, q_start, row0, q_len, kv_len = unit_at(args, unit // args.query_heads, units, only)
        q_head = unit % args.query_heads
        before = kv_len - q_len + row0
        last = cdiv(kv_len, TILE)
        if CAUSAL:
            last = cdiv(minimum(maximum(before + UNIT_ROWS, 0), kv_len), TILE)
        first = 0
        first = first_key(args, first, before + 1)
        count, tile_0, tile_1 = survey(args, seq, q_head, row0, maximum(first, 0) // TILE, last)
    word, column = tile_index(WORDS, 1, 1)
    record = where(word == 0, seq, where(word == 1, q_head, where(word == 2, q_start, where(word == 3, row0, q_len))))
    record = where(word < 5, record, where(word == 5, kv_len, where(word == 6, count, where(word == 7, tile_0, where(word == 8, tile_1, last)))))
    upper = 0
    lower = 0
    if ROW_FACTORS:
        upper = row_factor(args, maximum(seq, 0), row0 + vec_index(64), q_len, q_head)
        if CONSUMERS == 2:
            lower = row_factor(args, maximum(seq, 0), row0 + 64 + vec_index(64), q_len, q_head)
    return record[:, None] + column[None, :], upper, lower


@jit
def publish(work, factors, full, empty, item, record, upper, lower):
    """Producer: a unit's record and the factors of its rows, for all roles."""
    barrier_wait(empty[item % RECORDS], item // RECORDS)
    smem_store(work.slot(item % RECORDS), record)
    if ROW_FACTORS:
        smem_store(factors.slot(item % RECORDS * CONSUMERS), upper)
        if CONSUMERS == 2:
            smem_store(factors.slot(item % RECORDS * CONSUMERS + 1), lower)
    barrier_arrive(full[item % RECORDS])


@jit
def prepare(args, work, factors, full, empty, item, unit, units, only):
    """Producer: describe and publish a unit."""
    record, upper, lower = describe(args, unit, units, only)
    publish(work, factors, full, empty, item, record, upper, lower)
