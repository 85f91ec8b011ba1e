"""Consumer role of prefill: 64 query rows of every unit, a step for each key tile."""

from __future__ import annotations

from tle_attn.components.mainloops.unit_records import RECORDS, word_of
from tle_attn.dialect import (
    barrier_arrive,
    barrier_wait,
    cdiv,
    cols,
    cols_from,
    distances,
    full_rows,
    jit,
    like_rows,
    maximum,
    minimum,
    mma_zeros,
    named_arrive,
    named_wait,
    named_wait_for,
    pin,
    rows,
    smem_load_cols,
    smem_load_rows,
    uniform,
    wgmma_wait,
)


@jit
def raw_scores(k_scales, k_empty, scales_full, i, s):
    """Scores of tile i once its product is done, in units of the row factor; frees the key tile."""
    if KEY_SCALES:
        barrier_wait(scales_full[slot_of(i)], use_of(i))
        s = s * smem_load_cols(k_scales.slot(slot_of(i)), s)[None, :]
    release(k_empty, i)
    return s


@jit
def weighed(v_ratios, ratios_full, i, p):
    """P of tile i as it meets V: weights times the scales of their keys' values, relative to the largest."""
    barrier_wait(ratios_full[slot_of(i)], use_of(i))
    return p * smem_load_cols(v_ratios.slot(slot_of(i)), p)[None, :]


@jit
def logits(args, s, factor, tile, first_row, q_head, of_head, kv_len, masked: constexpr):
    """Scores of a tile with all that the recipe does to them; first_row: position of the tile's first query row."""
    if SCORED:
        s = s * factor[:, None]
    if RELATIVE:
        key = cols(s)[None, :]
        query = (first_row - tile * TILE + rows(s))[:, None]
    else:
        key = cols_from(s, tile * TILE)[None, :]
        query = (first_row + rows(s))[:, None]
    s = score(args, s, key, query, q_head, distances(s, first_row - tile * TILE), of_head)
    if masked:
        s = mask(args, s, key, query, q_head, kv_len)
    return s


@jit
def step(
    args, w: constexpr, q, q_rest, k_ring, k_rest, v_tiles, k_scales, v_ratios, v_tops, k_full, k_rest_full, k_empty, v_full, v_empty, scales_full,
    ratios_full, turn, i, tile, first_row, q_head, of_head, kv_len, factor, unit, o, p, m, l, masked: constexpr,
):
    """QK of tile i and PV of tile i - 1 in flight together; the softmax of tile i under PV."""
    operand = p_operand(p, o[0])
    wait_slot(k_full, i)
    s = qk_rows(q, k_ring.slot(slot_of(i)))
    if REST:
        s = add_rest(q_rest, k_rest, k_rest_full, i, s)
    wait_slot(v_full, i - 1)
    product = begin_pv(operand, v_tiles, slot_of(i - 1), o)
    s = wgmma_wait(1, s)
    s = raw_scores(k_scales, k_empty, scales_full, i, s)
    s = logits(args, s, factor, tile, first_row, q_head, of_head, kv_len, masked)
    larger = larger_maximum(s, m)
    if VALUE_SCALES:
        # their barrier was waited for when P was made
        top = smem_load_rows(v_tops.slot(slot_of(i - 1)), o[0])
    o, product = go_on_with_pv(operand, v_tiles, slot_of(i - 1), o, product, top)
    if TURNS:
        larger = named_wait_for(turn[w], larger)
    p, alpha = weights(s, m, larger, unit, masked)
    l = pin(add_weights(l, alpha, p))
    if TURNS:
        named_arrive(turn[1 - w])
    if VALUE_SCALES:
        p = weighed(v_ratios, ratios_full, i, p)
    o = end_pv(o, product, top)
    release(v_empty, i - 1)
    return rescaled(o, alpha), p, larger, l


@jit
def steps(
    args, w: constexpr, q, q_rest, k_ring, k_rest, v_tiles, k_scales, v_ratios, v_tops, k_full, k_rest_full, k_empty, v_full, v_empty, scales_full,
    ratios_full, turn, done, start, stop, tile_0, tile_1, first_row, q_head, of_head, kv_len, factor, unit, o, p, m, l, masked: constexpr,
):
    """Steps of the unit's tiles from `start` up to `stop`; tile_0, tile_1: the first two, behind which a tile's number is only wanted where none is skipped."""
    for i in range(start, stop):
        tile = tile_0 - i if POSITIONAL else tile_1
        o, p, m, l = step(
            args, w, q, q_rest, k_ring, k_rest, v_tiles, k_scales, v_ratios, v_tops, k_full, k_rest_full, k_empty, v_full, v_empty, scales_full,
            ratios_full, turn, done + i, tile, first_row, q_head, of_head, kv_len, factor, unit, o, p, m, l, masked,
        )
    return o, p, m, l


@jit
def attend(
    args, w: constexpr, q_smem, q_rest_smem, work, factors, k_ring, k_rest, v_tiles, v_atoms, k_scales, v_ratios, v_tops, work_full, work_empty, q_full,
    q_rest_full, q_empty, k_full, k_rest_full, k_empty, v_full, v_empty, scales_full, ratios_full, turn, both, o_smem,
):
    """Consumer role: 64 of a unit's rows.  What the steps do not need is read from the unit's record where it is needed: registers are short."""
    if TURNS:
        if w == 1:
            named_arrive(turn[0])
    item = 0
    visited = 0
    done = 0
    barrier_wait(work_full[0], 0)
    while word_of(work, item, 0) >= 0:
        q_head = word_of(work, item, 1)
        row0 = word_of(work, item, 3) + w * 64
        q_len = word_of(work, item, 4)
        kv_len = word_of(work, item, 5)
        count = word_of(work, item, 6)
        first_row = kv_len - q_len + row0
        o = no_output()
        s = mma_zeros(64, TILE, DTYPE)
        l = thread_sums(s)
        m = full_rows(s, float("-inf"))
        if ROW_FACTORS:
            # early: its way from memory is long
            if not VALUE_SCALES:
                values = value_factor(args, q_head // GROUP)
            factor = smem_load_rows(factors.slot(item % RECORDS * CONSUMERS + w), s)
        else:
            factor = whole_factor(args, s)
        if HEAD_VALUES:
            # once, and not behind each product
            of_head = head_value(args, 0.0, q_head)
        # a scale of 0 must not meet a masked score: 0 * -inf is NaN
        factor = maximum(factor, 1.0e-30)
        unit = factor
        if SCORED:
            unit = full_rows(s, 1.0)
        if count > 0:
            tile_0 = word_of(work, item, 7)
            tile_1 = word_of(work, item, 8)
            q = take_queries(q_smem, q_full, q_empty, w, visited, s)
            visited += 1
            wait_slot(k_full, done)
            if REST:
                q_rest = take_queries(q_rest_smem, q_rest_full, q_empty, w, visited - 1, s)
                s = wgmma_wait(0, add_rest(q_rest, k_rest, k_rest_full, done, qk_rows(q, k_ring.slot(slot_of(done)))))
            else:
                s = wgmma_wait(0, qk_rows(q, k_ring.slot(slot_of(done))))
            give_queries_back(q_empty, w, True)
            s = raw_scores(k_scales, k_empty, scales_full, done, s)
            s = logits(args, s, factor, tile_0, first_row, q_head, of_head, kv_len, True)
            m = larger_maximum(s, m)
            p, alpha = weights(s, m, m, unit, True)
            l = thread_sums(p)
            if VALUE_SCALES:
                p = weighed(v_ratios, ratios_full, done, p)
            if not TRANSPOSED:
                if (tile_0 + 1) * TILE > kv_len:
                    wait_slot(v_full, done)
                    clear_rows(v_atoms, slot_of(done), kv_len - tile_0 * TILE, w, both)
            if MASK_ALL:
                o, p, m, l = steps(
                    args, w, q, q_rest, k_ring, k_rest, v_tiles, k_scales, v_ratios, v_tops, k_full, k_rest_full, k_empty, v_full, v_empty, scales_full,
                    ratios_full, turn, done, 1, count, tile_0, tile_1, first_row, q_head, of_head, kv_len, factor, unit, o, p, m, l, True,
                )
            else:
                # tiles from `full` on cross this consumer's causal frontier: the first two at most.  Nobody but uniform() knows that bound: a compiler that did
                # would make a branch of the first loop, which costs ptxas 30 registers.
                full = kv_len // TILE
                if CAUSAL:
                    full = maximum(first_row + 1, 0) // TILE
                if TILE == 128:
                    masked = uniform(2 if (count > 1) & (tile_1 >= full) else 1)
                else:
                    # three of 64 keys
                    masked = uniform(minimum(maximum(tile_0 - full + 1, 1), count))
                if BOUNDED:
                    # the same two loops once more for tiles from `last` on, which hold the first keys that a query sees: text of their own would be a third step
                    whole = cdiv(maximum(first_key(args, 0, first_row + 64), 0), TILE)
                    last = uniform(minimum(maximum(tile_0 - whole + 1, masked), count))
                    for part in range(uniform(2 if last < count else 1)):
                        o, p, m, l = steps(
                            args, w, q, q_rest, k_ring, k_rest, v_tiles, k_scales, v_ratios, v_tops, k_full, k_rest_full, k_empty, v_full, v_empty,
                            scales_full, ratios_full, turn, done, last if part > 0 else 1, count if part > 0 else masked, tile_0, tile_1, first_row, q_head,
                            of_head, kv_len, factor, unit, o, p, m, l, True,
                        )
                        o, p, m, l = steps(
                            args, w, q, q_rest, k_ring, k_rest, v_tiles, k_scales, v_ratios, v_tops, k_full, k_rest_full, k_empty, v_full, v_empty,
                            scales_full, ratios_full, turn, done, count if part > 0 else masked, last, tile_0, tile_1, first_row, q_head, of_head, kv_len,
                            factor, unit, o, p, m, l, False,
                        )
                else:
                    o, p, m, l = steps(
                        args, w, q, q_rest, k_ring, k_rest, v_tiles, k_scales, v_ratios, v_tops, k_full, k_rest_full, k_empty, v_full, v_empty, scales_full,
                        ratios_full, turn, done, 1, masked, tile_0, tile_1, first_row, q_head, of_head, kv_len, factor, unit, o, p, m, l, True,
                    )
                    o, p, m, l = steps(
                        args, w, q, q_rest, k_ring, k_rest, v_tiles, k_scales, v_ratios, v_tops, k_full, k_rest_full, k_empty, v_full, v_empty, scales_full,
                        ratios_full, turn, done, masked, count, tile_0, tile_1, first_row, q_head, of_head, kv_len, factor, unit, o, p, m, l, False,
                    )
            give_queries_back(q_empty, w, False)
            end = done + count - 1
            wait_slot(v_full, end)
            operand = p_operand(p, o[0])
            if VALUE_SCALES:
                top = smem_load_rows(v_tops.slot(slot_of(end)), o[0])
            o, product = go_on_with_pv(operand, v_tiles, slot_of(end), o, begin_pv(operand, v_tiles, slot_of(end), o), top)
            o = end_pv(o, product, top)
            release(v_empty, end)
            done += count
        total = like_rows(row_sums(l), s)
        inverse = inverse_of_rows(denominator(args, total, m * unit, q_head))
        if ROW_FACTORS and not VALUE_SCALES:
            inverse = inverse * values
        q_head = word_of(work, item, 1)
        q_start = word_of(work, item, 2)
        row0 = word_of(work, item, 3) + w * 64
        q_len = word_of(work, item, 4)
        if STAGED:
            # a box would reach into the next sequence
            if row0 + 64 <= q_len:
                send_rows(args, o_smem.slot(w), output_rows(o), inverse, q_start + row0, q_head)
            else:
                store_rows(args, output_rows(o), inverse, q_start, row0, q_len, q_head)
        else:
            store_rows(args, output_rows(o), inverse, q_start, row0, q_len, q_head)
        store_row_lse(args, m, total, unit, q_start, row0, q_len, q_head)
        barrier_arrive(work_empty[item % RECORDS])
        item += 1
        barrier_wait(work_full[item % RECORDS], item // RECORDS)
    if STAGED:
        # a CTA that ended would take their shared memory with it
        wait_for_rows()
    if TURNS:
        if w == 0:
            named_wait(turn[0])
