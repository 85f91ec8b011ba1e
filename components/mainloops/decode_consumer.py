"""Consumer role of decode: all query rows of a (sequence, key/value head) pair, a step for each key tile, and what is done with the result."""

from __future__ import annotations

from tle_attn.dialect import F32, barrier_wait, cols, full_cols, jit, minimum, mma_zeros, rows, smem_load_cols, smem_load_rows, wgmma_wait


@jit
def take_key_scales(k_scales, scales_full, i, s):
    """Scales of key tile i, one per row of s."""
    barrier_wait(scales_full[slot_of(i)], use_of(i))
    return smem_load_rows(k_scales.slot(slot_of(i)), s)


@jit
def take_value_ratios(v_ratios, ratios_full, i, s):
    """Scales of value tile i relative to the largest, one per row of s."""
    barrier_wait(ratios_full[slot_of(i)], use_of(i))
    return smem_load_rows(v_ratios.slot(slot_of(i)), s)


@jit
def take_value_top(v_tops, i, o):
    """The largest of them, for each column of o; their barrier was waited for."""
    return smem_load_cols(v_tops.slot(slot_of(i)), o)


@jit
def logits(args, s, factor, token, query, q_head, kv_len, seq, first_new):
    """Base-2 logits of a key tile, masked."""
    s = s * factor[None, :]
    key = (token + rows(s))[:, None]
    s = score(args, s, key, query, q_head, (query - key).to(F32), head_value(args, 0.0, q_head), kv_len, seq, first_new)
    s = mask(args, s, key, query, q_head, kv_len, seq, first_new)
    return s


@jit
def attend(
    args, seq, head, first, count, kv_len, slot, first_slot, splits, flags, q_smem, p_smem, k_ring, v_ring, k_scales, v_ratios, v_tops, k_full, v_full, scales_full,
    ratios_full, k_empty, v_empty, states, sums, landed,
):
    """Consumer role: the product of tile i and the scores of tile i + 1 run together; then the merge."""
    load_queries(args, q_smem, seq, head)
    # here, or its load would be waited for at the end
    unit = value_unit(args, 1.0, head)
    o = mma_zeros(VALUE_DIM, COLUMNS, DTYPE)
    l = mma_zeros(TILE, COLUMNS, DTYPE)
    m = full_cols(o, float("-inf"))
    column = cols(l)
    factor = query_factor(args, l, column, seq, head)
    q_head = (head * GROUP + column % GROUP)[None, :]
    # padding columns repeat the last position, so that they read no key past the end
    query = minimum(kv_len - QUERY_TOKENS + column // GROUP, kv_len - 1)[None, :]
    if count > 0:
        wait_tile(k_full, 0)
        s = wgmma_wait(0, qk_product(k_ring.slot(0), q_smem))
        if KEY_SCALES:
            s = s * take_key_scales(k_scales, scales_full, 0, l)[:, None]
        release(k_empty, 0)
        s = logits(args, s, factor, tile_token(args, first * TILE, seq, head), query, q_head, kv_len, seq, kv_len - QUERY_TOKENS)
        m = first_reference(s)
        for i in range(count - 1):
            p_tile = p_smem.slot(i % 2)
            wait_tile(v_full, i)
            v = take_v(v_ring.slot(slot_of(i)))
            if VALUE_SCALES:
                ratio = take_value_ratios(v_ratios, ratios_full, i, l)
            m, l, o = softmax_step(args, s, m, l, o, p_tile, ratio)
            product = pv_product(v, p_tile, o)
            wait_tile(k_full, i + 1)
            s = qk_product(k_ring.slot(slot_of(i + 1)), q_smem)
            if KEY_SCALES:
                key_scales = take_key_scales(k_scales, scales_full, i + 1, l)
            if VALUE_SCALES:
                top = take_value_top(v_tops, i, o)
            product, s = wgmma_wait(0, (product, s))
            o = add_product(o, tile_product(args, product, top))
            release(v_empty, i)
            release(k_empty, i + 1)
            if KEY_SCALES:
                s = s * key_scales[:, None]
            s = logits(args, s, factor, tile_token(args, (first + i + 1) * TILE, seq, head), query, q_head, kv_len, seq, kv_len - QUERY_TOKENS)
        last = count - 1
        p_tile = p_smem.slot(last % 2)
        v_tile = v_ring.slot(slot_of(last))
        wait_tile(v_full, last)
        if tile_end(args, (first + count) * TILE, seq, head) > kv_len:
            clear_v(v_tile, kv_len - tile_token(args, (first + last) * TILE, seq, head))
        v = take_v(v_tile)
        if VALUE_SCALES:
            ratio = take_value_ratios(v_ratios, ratios_full, last, l)
            top = take_value_top(v_tops, last, o)
        m, l, o = softmax_step(args, s, m, l, o, p_tile, ratio)
        o = add_product(o, tile_product(args, wgmma_wait(0, pv_product(v, p_tile, o)), top))
        release(v_empty, last)
    finish(args, o, m, l, unit, seq, head, slot, first_slot, splits, flags, states, sums, landed)
