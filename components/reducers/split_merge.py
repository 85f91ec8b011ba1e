"""Split merge in the kernel: fp32 partial sums in a workspace, merged by the CTAs of the sequence themselves.

Where the whole grid is resident at once, which the task says, the first CTAs of the sequence wait until all partials are there and merge a share each:
few partials by some query rows, many by a slice of one row.  Elsewhere nobody may wait: the last CTA to arrive (one atomic ticket) merges all.
Partials are unnormalised: numerator [slot][query row][head_dim], then the base-2 maximum and the sum [slot][2][query row].
"""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import optional

from tle_attn.dialect import (
    arrive_release,
    as_int64,
    atomic_add,
    cdiv,
    cols,
    constexpr,
    exp2,
    full_rows,
    jit,
    like_cols,
    load,
    maximum,
    minimum,
    reduce_max,
    reduce_sum,
    reset_after,
    rows,
    static_range,
    store,
    take_ticket,
    tile_zeros,
    wait_at_least,
    where,
)
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, Constant, Function, Problem
from tle_attn.spec.problem import at_least


@frozen(kw_only=True)
class SplitMerge(Block):
    """Last arriver up to `poll_above` splits, shares above (0 = the last arriver always merges).  Left open: POLL_ABOVE with a task map, else 0.

    Attributes:
        poll_above: splits above which the CTAs of a sequence wait for each other.
        slice_above: splits above which a share is a slice of one row instead of rows.  Left open: SLICE_ABOVE where CTAs wait.

    Source of the defaults: measured on an H200 (docs/performance.md).  One SM that reads 8 partials of 32 query rows takes 4.5 us, four of them 1.5 us.
    """

    KIND = "reduce"
    NAME = "split_merge"

    POLL_ABOVE, SLICE_ABOVE = 1, 8
    #: CTAs without keys end at once
    HELPERS = False

    poll_above: int | None = field(default=None, validator=optional(at_least(0, "number of splits above which a sequence's CTAs wait for each other and merge a share each")))
    slice_above: int | None = field(default=None, validator=optional(at_least(0, "number of splits above which a share is a slice of one row")))

    def __attrs_post_init__(self) -> None:
        if self.poll_above and self.slice_above is None:
            object.__setattr__(self, "slice_above", self.SLICE_ABOVE)  # the way of frozen attrs classes

    def check(self, problem: Problem) -> None:
        if self.poll_above == 0 and self.slice_above:
            raise SpecError(
                "slice_above has no effect where the last CTA to arrive always merges", key="slice_above", value=self.slice_above, allowed="0, or left out",
                reason="poll_above is 0, or left open for a schedule of which nobody knows whether its CTAs are resident at once: there are no shares",
            )

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "POLL_ABOVE": Constant(self.poll_above, "splits above which the CTAs of a sequence merge a share each"),
            "SLICE_ABOVE": Constant(self.slice_above or 0, "splits above which a share is a slice of a row"),
            **partial_constants(problem),
            "DETACHED": Constant(False, "partial sums are merged by a kernel of its own"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (*partial_arguments(), Argument("counters", "*i32", "arrivals and departures [batch * kv heads, 2]; zero before and after a launch"))

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("finish"),)


def partial_constants(problem: Problem) -> dict[str, Constant]:
    """Of the functions that merge partial sums."""
    # a slice: 16 partials of 32 elements by the four warps, eight times: 128 partials, all of most sequences, in one pass
    return {
        "MERGE_UNROLL": Constant(8, "partials whose loads are in flight where rows are merged"),
        "SHARE_ROWS": Constant(max(1, 4 * 128 // problem.value_tile_dim), "query rows of a share"),
        "MERGE_ROWS": Constant(max(1, 8 * 128 // problem.value_tile_dim), "query rows that the last arriver merges at a time"),
        "SLICE": Constant(32, "head elements of a slice"),
        "SLICE_ROWS": Constant(16, "partials that are read at a time for a slice"),
        "SLICE_UNROLL": Constant(8, "such reads in flight"),
    }


def partial_arguments() -> tuple[Argument, ...]:
    """Where partial sums are."""
    return (
        Argument("partial_o", "*f32", "numerators of split sequences [slots, columns, head_dim]"),
        Argument("partial_ml", "*f32", "base-2 maximum and sum of split sequences [slots, 2, columns]"),
    )


@jit
def finish(args, o, m, l, unit, seq, head, slot, first_slot, splits, flags, states, sums, landed):
    """Write the rows of an unsplit sequence (slot -1), or join the merge of a split one (slot >= 0); slot -2 is an idle CTA."""
    row = cols(o)
    d = head_dim_of(rows(o))
    keep = (row < ROWS)[None, :] & (d < VALUE_ELEMENTS if VALUES_PADDED else d >= 0)[:, None]
    if slot >= 0:
        # the largest store first, so that the sum over keys hides part of its way
        store(args.partial_o + as_int64(slot) * (COLUMNS * VALUE_DIM) + (row * VALUE_DIM)[None, :] + d[:, None], o, mask=keep)
    l = reduce_sum(l, 0)
    if slot == -1:
        write_rows(args, o * like_cols(inverse_of(denominator(args, l, m, head * GROUP + row % GROUP)) * unit, o)[None, :], row[None, :], d[:, None], keep, seq, head)
        write_lse(args, m, l, row, row < ROWS, seq, head)
    if slot >= 0:
        ml = args.partial_ml + as_int64(slot) * (2 * COLUMNS)
        store(ml + row, m, mask=row < ROWS)
        store(ml + COLUMNS + row, l, mask=row < ROWS)
        if not DETACHED:
            counter = args.counters + (seq * args.kv_heads + head) * 2
            if POLL_ABOVE == 0:
                merge_as_last(args, counter, unit, seq, head, first_slot, splits, splits)
            else:
                if (splits <= POLL_ABOVE) | (flags % 2 == 0):
                    merge_as_last(args, counter, unit, seq, head, first_slot, splits, splits)
                else:
                    merge_shares(args, counter, unit, seq, head, slot - first_slot, first_slot, splits)


@jit
def merge_as_last(args, counter, unit, seq, head, first_slot, splits, arrivals):
    """The last of `arrivals` CTAs of the sequence merges everything; it leaves the counter at zero."""
    ticket = atomic_add(counter, 1)
    if ticket == arrivals - 1:
        store(counter, 0)
        merge_all(args, unit, seq, head, first_slot, splits)


@jit
def merge_states(m, l, acc, more_m, more_l, more_o):
    """The state of each row and further partial results (tuples): maximum, sum and numerator; one that has seen no key (m = -inf) changes nothing.

    The maximum of all first, so that each is weighted once: less code on a path that every instruction of is fetched for the first time.
    """
    top = m
    for u in static_range(len(more_m)):
        top = maximum(top, more_m[u])
    reference = where(top > float("-inf"), top, 0.0)
    weight = exp2(m - reference)
    l = l * weight
    acc = acc * weight[:, None]
    for u in static_range(len(more_m)):
        weight = exp2(more_m[u] - reference)
        l += more_l[u] * weight
        acc += more_o[u] * weight[:, None]
    return top, l, acc


@jit
def add_partials(args, m, l, acc, first_slot, part, row, d, left, step: constexpr, reads: constexpr):
    """Partials join the states of the tile's rows, `reads` for each, `step` slots apart: of query row `row` from slot first_slot + part on, as far as `left` of them are left."""
    slot = as_int64(first_slot)
    # one address a row: those of further reads differ by constants, which are part of the instructions
    ml = args.partial_ml + slot * (2 * COLUMNS) + (part * (2 * COLUMNS) + row)
    o = args.partial_o + slot * (COLUMNS * VALUE_DIM) + ((part * (COLUMNS * VALUE_DIM) + row * VALUE_DIM)[:, None] + d[None, :])
    more_m = ()
    more_l = ()
    more_o = ()
    for u in static_range(reads):
        here = left > u * step
        there = here[:, None]
        if VALUES_PADDED:
            there = there & (d < VALUE_ELEMENTS)[None, :]
        more_m = more_m + (load(ml + u * step * 2 * COLUMNS, mask=here, other=float("-inf"), cache_modifier=".cg"),)
        more_l = more_l + (load(ml + (u * step * 2 + 1) * COLUMNS, mask=here, other=0.0, cache_modifier=".cg"),)
        more_o = more_o + (load(o + u * step * COLUMNS * VALUE_DIM, mask=there, other=0.0, cache_modifier=".cg"),)
    return merge_states(m, l, acc, more_m, more_l, more_o)


@jit
def merge_all(args, unit, seq, head, first_slot, splits):
    """All query rows."""
    for block in range(cdiv(ROWS, MERGE_ROWS)):
        merge_rows(args, unit, seq, head, first_slot, splits, block, MERGE_ROWS)


@jit
def merge_rows(args, unit, seq, head, first_slot, splits, block, height: constexpr):
    """`height` query rows, all splits in slot order (so the result does not depend on who merges)."""
    acc = tile_zeros(height, VALUE_DIM, 4)
    l = full_rows(acc, 0.0)
    m = full_rows(acc, float("-inf"))
    r = block * height + rows(acc)
    d = cols(acc)
    keep = (r < ROWS)[:, None] & (d < VALUE_ELEMENTS if VALUES_PADDED else d >= 0)[None, :]
    for s in range(0, splits, MERGE_UNROLL):
        m, l, acc = add_partials(args, m, l, acc, first_slot + s, 0, r, d, where(r < ROWS, splits - s, 0), 1, MERGE_UNROLL)
    write_merged(args, m, l, acc, r, d, keep, unit, seq, head)


@jit
def write_merged(args, m, l, acc, r, d, keep, unit, seq, head):
    """Output rows of a sequence from its merged state."""
    write_rows(args, acc * (inverse_of(denominator(args, l, m, head * GROUP + r % GROUP)) * unit)[:, None], r[:, None], d[None, :], keep, seq, head)
    write_lse(args, m, l, r, r < ROWS, seq, head)


@jit
def merge_shares(args, counter, unit, seq, head, part, first_slot, splits):
    """The first CTAs of the sequence wait for all partials and merge a share each; the last to leave resets the counters."""
    arrive_release(counter)
    shares = cdiv(ROWS, SHARE_ROWS)
    if splits > SLICE_ABOVE:
        shares = ROWS * (VALUE_DIM // SLICE)
    mergers = minimum(splits, shares)
    if part < mergers:
        wait_at_least(counter, splits)
        ticket = take_ticket(counter + 1)
        for share in range(part, shares, mergers):
            if splits > SLICE_ABOVE:
                merge_slice(args, unit, seq, head, first_slot, splits, share // (VALUE_DIM // SLICE), share % (VALUE_DIM // SLICE))
            else:
                merge_rows(args, unit, seq, head, first_slot, splits, share, SHARE_ROWS)
        reset_after(counter, ticket, mergers - 1)


@jit
def merge_slice(args, unit, seq, head, first_slot, splits, row, block):
    """SLICE head elements of one query row; every tile row keeps a running maximum of its own, so the loop has no reduction."""
    acc = tile_zeros(SLICE_ROWS, SLICE, 4)
    l = full_rows(acc, 0.0)
    m = full_rows(acc, float("-inf"))
    d = block * SLICE + cols(acc)
    part = rows(acc)
    for s in range(0, splits, SLICE_ROWS * SLICE_UNROLL):
        m, l, acc = add_partials(args, m, l, acc, first_slot + s, part, row, d, splits - s - part, SLICE_ROWS, SLICE_UNROLL)
    top = reduce_max(m, 0)
    weight = exp2(m - where(top > float("-inf"), top, 0.0))
    total = reduce_sum(l * weight, 0)
    merged = reduce_sum(acc * weight[:, None], 0) * (inverse_of(denominator(args, total, top, head * GROUP + row % GROUP)) * unit)
    write_rows(args, merged, row, d, d < VALUE_ELEMENTS if VALUES_PADDED else d >= 0, seq, head)
    if block == 0:
        write_lse(args, top, total, row, row < ROWS, seq, head)
