"""Producer role of prefill: queries, key and value tiles, and what they need, in the order in which the consumers want them."""

from __future__ import annotations

from tle_attn.components.mainloops.unit_records import prepare, word_of
from tle_attn.dialect import F32, barrier_arrive, jit, smem_store, static_range, vec_index


@jit
def produce(
    args, units, only, q_smem, q_rest, work, factors, k_boxes, k_rest_boxes, v_boxes, v_ring, vt_ring, k_scales, v_ratios, v_tops, work_full, work_empty, q_full, q_rest_full, q_empty, k_full, k_rest_full, k_empty, v_full, v_empty,
    vt_full, vt_empty, scales_full, ratios_full,
):
    """Producer role: loads (and for fp8 transposes) the tiles of its CTA's units, and prepares the next unit while the first tile of one is on its way.

    `item` counts units, `visited` those with tiles, `done` tiles.
    """
    total = units * args.query_heads
    item = 0
    visited = 0
    done = 0
    while word_of(work, item, 0) >= 0:
        seq = word_of(work, item, 0)
        q_head = word_of(work, item, 1)
        row0 = word_of(work, item, 3)
        kv_len = word_of(work, item, 5)
        count = word_of(work, item, 6)
        last = word_of(work, item, 9)
        head = q_head // GROUP
        source = key_source(args, seq)
        if count > 0:
            q_start = word_of(work, item, 2)
            for w in static_range(CONSUMERS):
                load_query_tile(args, q_smem, q_rest, q_full, q_rest_full, q_empty, w, visited, q_head, q_start + row0 + w * 64)
        kept, at = open_tiles(args, seq, q_head, row0, last)
        previous = 0
        if VALUE_SCALES:
            # nothing that is published: the loop carries a tile's scales to the next round
            value_scales = vec_index(TILE).to(F32)
        for i in range(count):
            tile, kept, at = next_tile(args, seq, q_head, row0, last, kept, at)
            slot = slot_of(done + i)
            if KEY_SCALES:
                scales = read_key_scales(args, source, tile, kv_len, head)
            if VALUE_SCALES:
                fetched = read_value_scales(args, source, tile, kv_len, head)
            acquire(k_empty, done + i)
            load_key_tile(args, source, k_boxes, k_full[slot], slot, tile, kv_len, head)
            if REST:
                load_rest_tile(args, source, k_rest_boxes, k_rest_full[slot], slot, tile, kv_len, head)
            acquire(v_empty, done + i)
            load_value_tile(args, source, v_boxes, v_full[slot], slot, tile, kv_len, head)
            if i == 0:
                prepare(args, work, factors, work_full, work_empty, item + 1, take_unit(args, total), units, only)
            if TRANSPOSED:
                # one tile late, while this one's copies are on their way
                if i > 0:
                    transpose_tile(done + i - 1, kv_len - previous * TILE, v_ring, vt_ring, v_full, v_empty, vt_full, vt_empty, value_scales, v_ratios, v_tops, ratios_full)
                previous = tile
                if VALUE_SCALES:
                    value_scales = fetched
            if KEY_SCALES:
                smem_store(k_scales.slot(slot), scales)
                barrier_arrive(scales_full[slot])
        if count > 0:
            if TRANSPOSED:
                transpose_tile(done + count - 1, kv_len - previous * TILE, v_ring, vt_ring, v_full, v_empty, vt_full, vt_empty, value_scales, v_ratios, v_tops, ratios_full)
            visited += 1
            done += count
        else:
            prepare(args, work, factors, work_full, work_empty, item + 1, take_unit(args, total), units, only)
        item += 1
    leave_queue(args, total)
