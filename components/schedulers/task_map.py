"""Task map on the GPU: equal single-segment tasks that are all resident at once, planned by a small kernel without a host read.

Every CTA of the planner finds, by itself, the smallest chunk for which all sequences together give no more tasks than slots, and writes its own
record.  More sequences than slots, or much to read in half as many: the chunk is the average share of a slot or a part of it, tasks may exceed the slots, and the
records say that they are not all resident.  The map is rebuilt before each step (a captured graph stays right when lengths change) and shared by all layers of the step.

Record, 8 x int32: sequence, first key tile, tiles, kv length, partial slot (-1 unsplit, -2 idle), first slot of the sequence, parts, and the kv head
times 128 plus flags (1: all tasks are resident at once; 2 times the tiles of 16, but 32 at most, that the L2 cache can keep where elements have one byte).
With `page_ids` the ids of the task's first RECORD_PAGES pages follow, -1 past the end.
"""

from __future__ import annotations

from attrs import field, frozen

from tle_attn.dialect import (
    cdiv,
    cumsum,
    grid_launch_dependents,
    jit,
    load,
    maximum,
    minimum,
    program_id,
    reduce_max,
    reduce_sum,
    store,
    vec_index,
    where,
)
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, Constant, Function, Problem
from tle_attn.spec.problem import at_least
from tle_attn.spec.tasks import EVICT_SHARES, FLAGS, RECORD, RECORD_PAGES, WAVES

TILE = 64


@frozen(kw_only=True)
class TaskMap(Block):
    """Balanced task map.

    Attributes:
        min_tokens: tokens of a task at least.  Source of the default: below 8 key tiles a task's merge costs more than it saves (measured on an H200, docs/performance.md).
        page_ids: records hold a task's first page ids, so that its first copies wait for the record alone and not for the page table behind it.  The planner then
            reads `block_ids`, and a map is for one page table: another table, new pages in it, or another list of selected tiles need a new map, as new lengths do.
            Left open: where the loader has pages and no mask selects them.
        pdl: programmatic dependent launch: the attention kernel starts and sets up while the planner, or whatever comes before it, still runs.
    """

    KIND = "schedule"
    NAME = "task_map"
    PLANNED = True
    BATCH_INVARIANT = False
    ENTRIES = ("plan_tasks",)

    min_tokens: int = field(default=512, validator=at_least(TILE, "tokens of a task; a multiple of the 64-token key tile"), metadata={"tune": (256, 512, 1024)})
    page_ids: bool | None = None
    pdl: bool = False

    @min_tokens.validator
    def _whole_tiles(self, attribute: object, value: int) -> None:
        if value % TILE:
            raise SpecError(f"min_tokens cannot be {value}", key="min_tokens", value=value, allowed=f"a multiple of {TILE}", reason="tasks are whole key tiles")

    @property
    def record_words(self) -> int:
        """int32 words of a record."""
        return RECORD + RECORD_PAGES * bool(self.page_ids)

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "MIN_TILES": Constant(self.min_tokens // TILE, "key tiles of a task at least"),
            "WAVES": Constant(WAVES, "tasks for each slot where there is much to read in many sequences"),
            "FLAGS": Constant(FLAGS, "what the kv head is multiplied by in a record, to make room for flags"),
            "RECORD": Constant(self.record_words, "int32 words of a task record"),
            "FIRST_ID": Constant(RECORD, "word of a task record where its page ids begin"),
            "PAGE_IDS": Constant(bool(self.page_ids), "task records hold the first page ids"),
            "PDL": Constant(self.pdl, "the kernel starts while the planner runs"),
            "EVICT_SHARES": Constant(EVICT_SHARES, "key tiles of which a record says how many the L2 cache can keep"),
            "PLAN_BLOCK": Constant(256, "sequences that the planner looks at together"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (
            Argument("tasks", "*i32", f"task records [tasks, {self.record_words}]"),
            Argument("kv_lens", "*i32", "tokens in the cache [batch]"),
            Argument("new_tokens", "i32", "tokens to add to kv_lens: 0 if it counts this step's tokens already"),
            Argument("batch", "i32", "sequences"),
            Argument("kv_heads", "i32", "key/value heads"),
            Argument("slots", "i32", "CTAs of the attention kernel that are resident at once"),
            Argument("l2_tiles", "i32", "key tiles (with their value tiles) of one kv head that the L2 cache can keep, for elements of one byte"),
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("task"), Function("task_pages"), Function("plan_tasks"))


@jit
def task(args):
    """This CTA's record: sequence, kv head, first key tile, tiles, kv length, partial slot, its first slot, parts, flags."""
    record = args.tasks + program_id(0) * RECORD
    flags = load(record + 7)
    return (
        load(record),
        flags // FLAGS,
        load(record + 1),
        load(record + 2),
        load(record + 3),
        load(record + 4),
        load(record + 5),
        load(record + 6),
        flags % FLAGS,
    )


@jit
def task_pages(args):
    """Page ids of this CTA's record, one a lane."""
    return load(args.tasks + program_id(0) * RECORD + FIRST_ID + vec_index(PAGE_BLOCK))


@jit
def lengths(args, base):
    """Key tiles of PLAN_BLOCK sequences from `base` on, and which of them exist."""
    seq = base + vec_index(PLAN_BLOCK)
    here = seq < args.batch
    kv_len = load(args.kv_lens + seq, mask=here, other=0) + args.new_tokens
    first, last = tile_range(args, minimum(seq, args.batch - 1), kv_len)
    return where(here, last - first, 0), here


@jit
def parts_of(tiles, here, chunk):
    """Tasks that each sequence is cut into: at least one, so that empty sequences get their zeros written."""
    return where(here, maximum((tiles + chunk - 1) // chunk, 1), 0)


@jit
def count_tasks(args, chunk):
    """Tasks of one kv head for a chunk size."""
    n = 0
    for base in range(0, args.batch, PLAN_BLOCK):
        tiles, here = lengths(args, base)
        n += reduce_sum(parts_of(tiles, here, chunk), 0)
    return n


@jit
def measure(args):
    """Key tiles in total and of the longest sequence."""
    total = 0
    longest = 1
    for base in range(0, args.batch, PLAN_BLOCK):
        tiles, here = lengths(args, base)
        total += reduce_sum(tiles, 0)
        longest = maximum(longest, reduce_max(tiles, 0))
    return total, longest


@jit
def choose_chunk(args, slots, total, longest):
    """Smallest chunk, from the minimum up, that gives at most `slots` tasks; the average share where sequences alone exceed the slots.

    Where sequences fill half of the slots, equal parts of each leave some slots with little: with enough to read there are WAVES tasks for each slot, so that
    CTAs which end early take another.

    The minimum is MIN_TILES, and half of it where there are few tiles for each slot and the longest sequence is split anyway: then the serial steps
    of a task, not the bytes, take the time.
    """
    least = MIN_TILES // 2 if (longest > MIN_TILES) & (total <= 2 * slots) else MIN_TILES
    waves = WAVES if (2 * args.batch >= slots) & (total >= WAVES * 2 * MIN_TILES * slots) else 1
    low = maximum(cdiv(total, waves * slots), least)
    high = low
    if (slots > args.batch) & (waves == 1):
        # sum ceil(t / c) <= total / c + batch, so this chunk always fits
        high = maximum(minimum(longest, cdiv(total, slots - args.batch)), low)
        while low < high:
            middle = (low + high) // 2
            if count_tasks(args, middle) <= slots:
                high = middle
            else:
                low = middle + 1
    return high


@jit
def plan_tasks(args):
    """Planner kernel: CTA j writes record j of the attention kernel's grid."""
    if PDL:
        grid_launch_dependents()
    slots = maximum(args.slots // args.kv_heads, 1)
    total, longest = measure(args)
    chunk = choose_chunk(args, slots, total, longest)
    per_head = count_tasks(args, chunk)
    j = program_id(0)
    head = j // per_head
    index = j - head * per_head
    record = args.tasks + j * RECORD
    store(record + 4, -2)
    store(record + 2, 0)
    store(record + 1, 0)
    store(record, 0)
    before = 0
    split_before = 0
    if head < args.kv_heads:
        for base in range(0, args.batch, PLAN_BLOCK):
            tiles, here = lengths(args, base)
            parts = parts_of(tiles, here, chunk)
            split = where(parts > 1, parts, 0)
            end = cumsum(parts) + before
            split_end = cumsum(split) + split_before
            # the one sequence whose tasks hold `index`
            mine = (end > index) & (end - parts <= index)
            if reduce_max(where(mine, 1, 0), 0) == 1:
                seq = base + reduce_sum(where(mine, vec_index(PLAN_BLOCK), 0), 0)
                n = reduce_sum(where(mine, parts, 0), 0)
                part = index - reduce_sum(where(mine, end - parts, 0), 0)
                first_slot = reduce_sum(where(mine, split_end - split, 0), 0)
                write_record(args, record, seq, head, part, n, first_slot, per_head, total)
            before += reduce_sum(parts, 0)
            split_before += reduce_sum(split, 0)


@jit
def write_record(args, record, seq, head, part, parts, first_slot, per_head, total):
    """Part `part` of `parts` equal parts of a sequence."""
    kv_len = load(args.kv_lens + seq) + args.new_tokens
    first, last = tile_range(args, seq, kv_len)
    start = (last - first) * part // parts
    first_slot = head * per_head + first_slot
    store(record, seq)
    store(record + 1, first + start)
    store(record + 2, (last - first) * (part + 1) // parts - start)
    store(record + 3, kv_len)
    store(record + 4, first_slot + part if parts > 1 else -1)
    store(record + 5, first_slot)
    store(record + 6, parts)
    resident = 1 if per_head * args.kv_heads <= args.slots else 0
    # rounded down: one line too many that is read again would push out another
    kept = minimum(EVICT_SHARES * args.l2_tiles // maximum(total, 1), 2 * EVICT_SHARES)
    store(record + 7, head * FLAGS + 2 * kept + resident)
    if PAGE_IDS:
        store(record + FIRST_ID + vec_index(PAGE_BLOCK), page_block(args, key_source(args, seq), first_page(first + start), kv_len, seq, head))
