"""Heavy first: persistent CTAs take (query tile, head) units in the order of their causal work, the next one from a counter.

A unit is the query rows that a CTA takes at a time; its class is how far the causal rule lets it see, in units.  Units are taken by falling class, heads innermost,
so that neighbours share K and V in the L2 cache and the light units fill the gaps at the end.  Handing them out one by one keeps ragged batches and
block masks, whose work nobody knows beforehand, balanced.  A batch of one needs no plan; for others a small kernel, run once for all layers of a
step, sorts the units on the device: a unit's place is the number of units of higher class, and of equal class in earlier sequences.
"""

from __future__ import annotations

from attrs import frozen

from tle_attn.dialect import (
    atomic_add,
    cdiv,
    cols,
    jit,
    load,
    maximum,
    minimum,
    num_programs,
    program_id,
    reduce_sum,
    rows,
    store,
    tile_zeros,
    vec_index,
    where,
)
from tle_attn.spec import Argument, Block, Constant, Function, Problem

UNIT_WORDS = 8
#: sequences, and units of a sequence, that the planner compares at a time
SEQUENCES, UNITS = 128, 32


@frozen(kw_only=True)
class HeavyFirst(Block):
    """Grid: as many CTAs as multiprocessors, or units if there are fewer.

    `units`: record 0 holds the number of units; record 1 + i, for i in order of work, the sequence, its first query row in q, the unit's first row in the
    sequence, the sequence's queries and its keys.  `queue`: units handed out beyond the first of each CTA, and CTAs that are done; zero before and after.
    """

    KIND = "schedule"
    NAME = "heavy_first"
    PLANNED = True
    ENTRIES = ("plan_units",)

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "UNIT_WORDS": Constant(UNIT_WORDS, "int32 words of a unit's record"),
            "PLAN_SEQUENCES": Constant(SEQUENCES, "sequences that the planner compares at a time"),
            "PLAN_UNITS": Constant(UNITS, "units that the planner places at a time"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (
            Argument("cu_seqlens_q", "*i32", "first query row of each sequence, and the end [batch + 1]"),
            Argument("kv_lens", "*i32", "tokens in the cache, this step's included [batch]"),
            Argument("batch", "i32", "sequences"),
            Argument("query_heads", "i32", "query heads"),
            Argument("units", "*i32", "units in order of work, behind a header [1 + units, 8]; not read for a batch of one"),
            Argument("queue", "*i32", "units taken, CTAs done [2]; zero before and after a launch"),
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("open_queue"), Function("unit_at"), Function("take_unit"), Function("leave_queue"))


@jit
def key_class(q_len, kv_len):
    """Class of a sequence's first unit; unit i is i classes above it."""
    return cdiv(maximum(kv_len - q_len, 0), UNIT_ROWS)


@jit
def open_queue(args):
    """Units of the batch, and the first sequence (first query row, queries, keys), which for a batch of one is all that a unit is made of."""
    q_start = load(args.cu_seqlens_q)
    q_len = load(args.cu_seqlens_q + 1) - q_start
    kv_len = load(args.kv_lens)
    count = cdiv(q_len, UNIT_ROWS)
    if args.batch > 1:
        count = load(args.units)
    return count, (q_start, q_len, kv_len)


@jit
def unit_at(args, i, units, only):
    """Unit i in order of work: sequence, its first query row in q, the unit's first row in the sequence, the sequence's queries and keys."""
    seq = 0
    q_start, q_len, kv_len = only
    row0 = (units - 1 - i) * UNIT_ROWS
    if args.batch > 1:
        record = args.units + (1 + i) * UNIT_WORDS
        seq = load(record)
        q_start = load(record + 1)
        row0 = load(record + 2)
        q_len = load(record + 3)
        kv_len = load(record + 4)
    return seq, q_start, row0, q_len, kv_len


@jit
def take_unit(args, total):
    """Index of the CTA's next (unit, head); `total` or more where none is left."""
    following = total
    if total > num_programs(0):
        following = atomic_add(args.queue, 1, sem="relaxed") + num_programs(0)
    return following


@jit
def leave_queue(args, total):
    """The last CTA to be done leaves the queue as it was found."""
    if total > num_programs(0):
        # not by take_ticket: one thread's ticket makes control flow divergent, and ptxas gives up uniform registers in all roles (100 instructions a step)
        if atomic_add(args.queue + 1, 1) == num_programs(0) - 1:
            store(args.queue, 0)
            store(args.queue + 1, 0)


@jit
def plan_units(args):
    """Place the units of one sequence, and count those of the batch."""
    seq = program_id(0)
    q_start = load(args.cu_seqlens_q + seq)
    q_len = load(args.cu_seqlens_q + seq + 1) - q_start
    kv_len = load(args.kv_lens + seq)
    mine = cdiv(q_len, UNIT_ROWS)
    base = key_class(q_len, kv_len)
    zero = tile_zeros(PLAN_UNITS, PLAN_SEQUENCES, 4)
    other = cols(zero)
    for first in range(0, mine, PLAN_UNITS):
        unit = first + rows(zero)
        place = unit * 0
        for start in range(0, args.batch, PLAN_SEQUENCES):
            there = start + other < args.batch
            begin = load(args.cu_seqlens_q + start + other, mask=there, other=0)
            queries = load(args.cu_seqlens_q + start + other + 1, mask=there, other=0) - begin
            keys = load(args.kv_lens + start + other, mask=there, other=0)
            count = (queries + UNIT_ROWS - 1) // UNIT_ROWS
            # units of that sequence that are heavier; and the one as heavy, if its sequence comes first
            ahead = (key_class(queries, keys) + count)[None, :] - (base + 1 + unit)[:, None]
            heavier = minimum(maximum(ahead, 0), count[None, :])
            equal = where((ahead >= 0) & (ahead < count[None, :]) & (start + other < seq)[None, :], 1, 0)
            place += reduce_sum(heavier + equal, 1)
        record = args.units + (1 + place) * UNIT_WORDS
        keep = unit < mine
        store(record, unit * 0 + seq, mask=keep)
        store(record + 1, unit * 0 + q_start, mask=keep)
        store(record + 2, unit * UNIT_ROWS, mask=keep)
        store(record + 3, unit * 0 + q_len, mask=keep)
        store(record + 4, unit * 0 + kv_len, mask=keep)
    if seq == 0:
        total = 0
        sequence = vec_index(PLAN_SEQUENCES)
        for start in range(0, args.batch, PLAN_SEQUENCES):
            there = start + sequence < args.batch
            begin = load(args.cu_seqlens_q + start + sequence, mask=there, other=0)
            queries = load(args.cu_seqlens_q + start + sequence + 1, mask=there, other=0) - begin
            total += reduce_sum((queries + UNIT_ROWS - 1) // UNIT_ROWS, 0)
        store(args.units, total)
