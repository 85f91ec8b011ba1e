"""Kernel text of the emulator tests: prefill."""
# ruff: noqa: F403, F405
from tle_attn.dialect.cpu import *

# ==== kernel text: the same for every target
STAGES = constexpr(2)
PAGE = constexpr(64)
HEAD_DIM = constexpr(128)
PAGE_BYTES = constexpr(16384)
Q_BYTES = constexpr(16384)

# ---- prefill_mainloop
@jit
def tile_count(q_len, kv_len, row0):
    return cdiv(minimum(kv_len - q_len + row0 + 128, kv_len), PAGE)


@jit
def causal(s, first_pos, token0):
    return where(token0 + cols(s)[None, :] <= first_pos + rows(s)[:, None], s, float("-inf"))


@jit
def softmax_rows(s, m, l):
    m_new = maximum(m, reduce_max(s, 1))
    m_ref = where(m_new > float("-inf"), m_new, 0.0)
    alpha = exp2(m - m_ref)
    p = exp2(s - m_ref[:, None])
    return p, m_new, l * alpha + reduce_sum(p, 1), alpha


@jit
def attend(out, q_len, kv_len, heads, scale, w: constexpr, q_smem, k_ring, v_ring, q_full, k_full, v_full, k_empty, v_empty):
    row0 = program_id(0) * 128
    pos0 = kv_len - q_len + row0 + w * 64
    n = tile_count(q_len, kv_len, row0)
    q = q_smem.slot(w)
    o = mma_zeros(64, HEAD_DIM, BF16)
    barrier_wait(q_full[w], 0)
    barrier_wait(k_full[0], 0)
    s = wgmma_wait(0, wgmma(q, k_ring.slot(0), trans_b=True))
    barrier_arrive(k_empty[0])
    s = causal(s * scale, pos0, 0)
    p, m, l, alpha = softmax_rows(s, full_rows(s, float("-inf")), full_rows(s, 0.0))
    for i in range(1, n):
        kslot = i % STAGES
        vslot = (i - 1) % STAGES
        barrier_wait(k_full[kslot], i // STAGES)
        s_next = wgmma(q, k_ring.slot(kslot), trans_b=True)
        barrier_wait(v_full[vslot], (i - 1) // STAGES)
        o_next = wgmma(register_operand(p.to(BF16), o), v_ring.slot(vslot), o)
        s = wgmma_wait(1, s_next)
        barrier_arrive(k_empty[kslot])
        s = causal(s * scale, pos0, i * PAGE)
        p, m, l, alpha = softmax_rows(s, m, l)
        o = wgmma_wait(0, o_next)
        barrier_arrive(v_empty[vslot])
        o = o * like_rows(alpha, o)[:, None]
    vslot = (n - 1) % STAGES
    barrier_wait(v_full[vslot], (n - 1) // STAGES)
    o = wgmma_wait(0, wgmma(register_operand(p.to(BF16), o), v_ring.slot(vslot), o))
    barrier_arrive(v_empty[vslot])
    o = o * like_rows(fdiv(1.0, l), o)[:, None]
    row = row0 + w * 64 + rows(o)
    store(out + (row * heads + program_id(1))[:, None] * HEAD_DIM + cols(o)[None, :], o.to(BF16), mask=(row < q_len)[:, None])


@jit
def load_tiles(q_desc, k_desc, v_desc, page_table, q_len, kv_len, group, q_smem, k_ring, v_ring, q_full, k_full, v_full, k_empty, v_empty):
    row0 = program_id(0) * 128
    head = program_id(1)
    for w in static_range(2):
        copy(q_desc, q_smem.slot(w), [64, 1, HEAD_DIM], [row0 + w * 64, head, 0], barrier=q_full[w])
    for i in range(tile_count(q_len, kv_len, row0)):
        page = load(page_table + i)
        s = i % STAGES
        use = i // STAGES
        barrier_wait(k_empty[s], use)
        copy(k_desc, k_ring.slot(s), [1, 1, PAGE, HEAD_DIM], [page, head // group, 0, 0], barrier=k_full[s])
        barrier_wait(v_empty[s], use)
        copy(v_desc, v_ring.slot(s), [1, 1, PAGE, HEAD_DIM], [page, head // group, 0, 0], barrier=v_full[s])


@jit
def prefill(q_desc, k_desc, v_desc, out, page_table, q_len, kv_len, heads, group, scale):
    q_smem = alloc([2, 64, HEAD_DIM], BF16)
    k_ring = alloc([STAGES, PAGE, HEAD_DIM], BF16)
    v_ring = alloc([STAGES, PAGE, HEAD_DIM], BF16)
    q_full = alloc_barriers(2, expect_bytes=Q_BYTES)
    k_full = alloc_barriers(STAGES, expect_bytes=PAGE_BYTES)
    v_full = alloc_barriers(STAGES, expect_bytes=PAGE_BYTES)
    k_empty = alloc_barriers(STAGES, 2, init=READY)
    v_empty = alloc_barriers(STAGES, 2, init=READY)
    fence_async()
    warp_specialize([
        (attend, (out, q_len, kv_len, heads, scale, 0, q_smem, k_ring, v_ring, q_full, k_full, v_full, k_empty, v_empty)),
        (attend, (out, q_len, kv_len, heads, scale, 1, q_smem, k_ring, v_ring, q_full, k_full, v_full, k_empty, v_empty)),
        (load_tiles, (q_desc, k_desc, v_desc, page_table, q_len, kv_len, group, q_smem, k_ring, v_ring, q_full, k_full, v_full, k_empty, v_empty)),
    ], [4, 1], [240, 24])
