"""Producer roles of decode: a warp for K tiles and one for V tiles, and the scales that every key has of its own."""

from __future__ import annotations

from tle_attn.dialect import F32, evict_first, jit, maximum, vec_index


@jit
def spread(index):
    """Place of a tile among 16, the bits reversed: those below any number are spread evenly, and one more leaves the others as they are."""
    return index % 2 * 8 + index // 2 % 2 * 4 + index // 4 % 2 * 2 + index // 8 % 2


@jit
def keep_or_drop(tile, seq, flags):
    """Cache policy of a tile's copy: what the L2 cache cannot keep leaves it first, the same tiles in the next call, so that the others are still there for it.

    Without this a next reader in the same order finds nothing: each tile comes just after it had to make room.
    """
    leaving = maximum(EVICT_SHARES - flags // 2 // ELEMENT_BYTES, 0)
    evict_first(1 if spread(tile + seq) < leaving else 0)


@jit
def load_keys(args, seq, head, first, count, kv_len, flags, first_ids, boxes, k_scales, full, scales_full, empty):
    """Producer role: K tiles, and their scales where every key has one."""
    if PAGED:
        page_row, ids, later, end = open_pages(args, seq, head, first, kv_len, first_ids)
    else:
        ids = seq
    if KEY_SCALES:
        scales = fetch_key_scales(args, ids, 0, first, head)
    for i in range(count):
        if PAGED:
            page = first_page(first + i)
            ids, later, end = turn_pages(args, page_row, ids, later, end, page, kv_len, seq, head)
            lane = page - end + PAGE_BLOCK
        if KEY_SCALES:
            fetched = fetch_key_scales(args, ids, lane, first + i, head)
        if EVICT_FIRST:
            keep_or_drop(first + i, seq, flags)
        acquire(empty, i)
        load_tile(args.k_desc, boxes, full, slot_of(i), ids, lane, first + i, head)
        if KEY_SCALES:
            # one tile late, when the load has come back
            if i > 0:
                publish_key_scales(k_scales, scales_full, i - 1, scales)
            scales = fetched
    if KEY_SCALES:
        if count > 0:
            publish_key_scales(k_scales, scales_full, count - 1, scales)


@jit
def load_values(args, seq, head, first, count, kv_len, flags, first_ids, boxes, v_ratios, v_tops, full, ratios_full, empty):
    """Producer role: V tiles."""
    if PAGED:
        page_row, ids, later, end = open_pages(args, seq, head, first, kv_len, first_ids)
    else:
        ids = seq
    if VALUE_SCALES:
        # nothing that is published: the loop carries a tile's scales to the next round
        scales = vec_index(TILE).to(F32)
    for i in range(count):
        if PAGED:
            page = first_page(first + i)
            ids, later, end = turn_pages(args, page_row, ids, later, end, page, kv_len, seq, head)
        if VALUE_SCALES:
            fetched = fetch_value_scales(args, ids, page - end + PAGE_BLOCK, first + i, kv_len - tile_token(args, (first + i) * TILE, seq, head), head)
        if EVICT_FIRST:
            keep_or_drop(first + i, seq, flags)
        acquire(empty, i)
        if PAGED:
            lane = page - end + PAGE_BLOCK
        if OTHER_VALUES:
            load_value_tile(args.v_desc, boxes, full, slot_of(i), ids, lane, first + i, head)
        else:
            load_tile(args.v_desc, boxes, full, slot_of(i), ids, lane, first + i, head)
        if VALUE_SCALES:
            # one tile late, when the load has come back
            if i > 0:
                publish_value_scales(v_ratios, v_tops, ratios_full, i - 1, scales)
            scales = fetched
    if VALUE_SCALES:
        if count > 0:
            publish_value_scales(v_ratios, v_tops, ratios_full, count - 1, scales)
