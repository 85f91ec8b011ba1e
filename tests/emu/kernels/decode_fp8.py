"""Kernel text of the emulator tests: decode_fp8."""
# ruff: noqa: F403, F405
from tle_attn.dialect.cpu import *


def token_order(tile):
    return tile.reshape([tile.shape[0], 4, 2, 4, 2]).permute((0, 1, 3, 4, 2)).reshape([tile.shape[0], 64])


def load_v_transposed(buf):
    """[64 tokens, 128] in the ring -> [128, 64]: row d' = (d & 1) * 64 + (d >> 1), columns in token_order"""
    v_t = trans(smem_load(buf))
    v_t = v_t.reshape([64, 2, 64]).permute((1, 0, 2)).reshape([128, 64])
    return token_order(v_t)


# ==== kernel text: the same for every target
STAGES = constexpr(6)
PAGE = constexpr(64)
HEAD_DIM = constexpr(128)
QUERIES = constexpr(8)
PAGE_BYTES = constexpr(8192)
KV_DTYPE = constexpr(FP8)
P_EXPONENT = constexpr(8.0)

# ---- tiles
@jit
def tile_range(kv_len):
    first = 0
    return first, cdiv(kv_len, PAGE)


# ---- decode_mainloop
@jit
def load_queries(q, q_smem, row0):
    r, c = tile_index(QUERIES, HEAD_DIM, 8)
    smem_store(q_smem, load(q + (row0 + r[:, None]) * HEAD_DIM + c[None, :]))
    fence_async()


# ---- pv_fp8
@jit
def head_dim_of(row):
    return (row % 64) * 2 + row // 64


# ---- decode_mainloop
@jit
def write_out(out, o, l, row0):
    o = o * where(l > 0.0, fdiv(1.0, l), 0.0)[None, :]
    store(out + (row0 + cols(o)[None, :]) * HEAD_DIM + head_dim_of(rows(o))[:, None], o.to(BF16))


# ---- score_scale
@jit
def scale_scores(scale, s, token0, kv_len):
    return s * scale


# ---- mask_ragged
@jit
def mask_scores(s, token0, kv_len):
    token = token0 + rows(s)
    keep = token < kv_len
    return where(keep[:, None], s, float("-inf"))


# ---- hook score
@jit
def score(scale, s, token0, kv_len):
    s = scale_scores(scale, s, token0, kv_len)
    s = mask_scores(s, token0, kv_len)
    return s


# ---- online_softmax
@jit
def online_softmax(s, m, l):
    m_new = maximum(m, reduce_max(s, 0))
    m_ref = where(m_new > float("-inf"), m_new, 0.0)
    alpha = exp2(m - m_ref)
    m_ref = m_ref - P_EXPONENT
    p = exp2(s - m_ref[None, :])
    return p, m_new, l * alpha[None, :] + p, alpha


# ---- pv_fp8
@jit
def store_p(p_smem, p):
    smem_store(p_smem, token_order(trans(p.to(KV_DTYPE))))


@jit
def pv_product(v, p_smem, o):
    return wgmma(register_operand(load_v_transposed(v), o), p_smem, o, trans_b=True)


# ---- decode_mainloop
@jit
def attend(q, out, kv_lens, kv_heads, scale, q_smem, p_smem, k_ring, v_ring, k_full, v_full, k_empty, v_empty):
    seq = program_id(0)
    row0 = (seq * kv_heads + program_id(1)) * QUERIES
    kv_len = load(kv_lens + seq)
    first, last = tile_range(kv_len)
    load_queries(q, q_smem, row0)
    o = mma_zeros(HEAD_DIM, QUERIES, KV_DTYPE)
    l = mma_zeros(PAGE, QUERIES, KV_DTYPE)
    m = full_cols(o, float("-inf"))
    for i in range(last - first):
        s = i % STAGES
        use = i // STAGES
        barrier_wait(k_full[s], use)
        scores = wgmma(k_ring.slot(s), q_smem, trans_b=True)
        scores = wgmma_wait(0, scores)
        barrier_arrive(k_empty[s])
        scores = score(scale, scores, (first + i) * PAGE, kv_len)
        p, m, l, alpha = online_softmax(scores, m, l)
        store_p(p_smem, p)
        fence_async()
        o = o * alpha[None, :]
        barrier_wait(v_full[s], use)
        o = pv_product(v_ring.slot(s), p_smem, o)
        o = wgmma_wait(0, o)
        barrier_arrive(v_empty[s])
    write_out(out, o, reduce_sum(l, 0), row0)


@jit
def load_pages(k_desc, v_desc, page_table, kv_lens, max_pages, k_ring, v_ring, k_full, v_full, k_empty, v_empty):
    seq = program_id(0)
    head = program_id(1)
    first, last = tile_range(load(kv_lens + seq))
    for i in range(last - first):
        page = load(page_table + seq * max_pages + first + i)
        s = i % STAGES
        use = i // STAGES
        barrier_wait(k_empty[s], use)
        copy(k_desc, k_ring.slot(s), [1, 1, PAGE, HEAD_DIM], [page, head, 0, 0], barrier=k_full[s])
        barrier_wait(v_empty[s], use)
        copy(v_desc, v_ring.slot(s), [1, 1, PAGE, HEAD_DIM], [page, head, 0, 0], barrier=v_full[s])


@jit
def decode(q, k_desc, v_desc, out, page_table, kv_lens, max_pages, kv_heads, scale):
    k_ring = alloc([STAGES, PAGE, HEAD_DIM], KV_DTYPE)
    v_ring = alloc([STAGES, PAGE, HEAD_DIM], KV_DTYPE)
    q_smem = alloc([QUERIES, HEAD_DIM], KV_DTYPE)
    p_smem = alloc([QUERIES, PAGE], KV_DTYPE)
    k_full = alloc_barriers(STAGES, expect_bytes=PAGE_BYTES)
    v_full = alloc_barriers(STAGES, expect_bytes=PAGE_BYTES)
    k_empty = alloc_barriers(STAGES, init=READY)
    v_empty = alloc_barriers(STAGES, init=READY)
    fence_async()
    warp_specialize([
        (attend, (q, out, kv_lens, kv_heads, scale, q_smem, p_smem, k_ring, v_ring, k_full, v_full, k_empty, v_empty)),
        (load_pages, (k_desc, v_desc, page_table, kv_lens, max_pages, k_ring, v_ring, k_full, v_full, k_empty, v_empty)),
    ], [1], [24])
