"""Shared memory and TMA."""
# ruff: noqa: F821 (the names are the dialect's; a target's prelude comes first)
# ==== kernel text: the same for every target
# ---- shared memory
@jit
def k_shared(x, v, out):
    ring = alloc([2, 64, 64], BF16)
    table = alloc_plain([64, 64], F32)
    row_list = alloc_plain([64], F32)
    col_list = alloc_plain([64], F32)
    r, c = tile_index(64, 64, 8)
    a = load(x + r[:, None] * 64 + c[None, :])
    smem_store(ring.slot(1), a)
    smem_store(table, a.to(F32) * 2)
    i = vec_index(64)
    smem_store(row_list, load(v + i))
    smem_store(col_list, load(v + 64 + i))
    role_sync()
    b = smem_load(ring.slot(1)).to(F32)
    b = b * smem_load_rows(row_list, b)[:, None] + smem_load_cols(col_list, b)[None, :]
    store(out + rows(b)[:, None] * 64 + cols(b)[None, :], b)
    d = smem_load(table)
    store(out + 4096 + rows(d)[:, None] * 64 + cols(d)[None, :], d)


@jit
def k_zero_rows(x, y, out, n):
    wide = alloc([2, 64, 128], BF16)
    narrow = alloc([64, 64], FP8)
    r, c = tile_index(64, 128, 8)
    smem_store(wide.slot(1), load(x + r[:, None] * 128 + c[None, :]))
    u, w = tile_index(64, 64, 8)
    smem_store(narrow, load(y + u[:, None] * 64 + w[None, :]))
    role_sync()
    zero_rows(wide.slot(1), n)
    zero_rows(narrow, n - 64)
    role_sync()
    a = smem_load(wide.slot(1)).to(F32)
    store(out + rows(a)[:, None] * 128 + cols(a)[None, :], a)
    b = smem_load(narrow).to(F32)
    store(out + 8192 + rows(b)[:, None] * 64 + cols(b)[None, :], b)


@jit
def k_alias(pages_desc, out):
    # four pages of 16 tokens land in a tile of 64 tokens: slot h * 4 + j is column block h of page j
    ring = alloc([1, 64, 128], BF16)
    pages = alias(ring, [8, 16, 64])
    full = alloc_barriers(8, expect_bytes=2048)
    fence_async()
    for j in static_range(4):
        for h in static_range(2):
            copy(pages_desc, pages.slot(h * 4 + j), [1, 16, 64], [3 - j, 0, 64 * h], barrier=full[h * 4 + j])
    for j in static_range(8):
        barrier_wait(full[j], 0)
    a = smem_load(ring.slot(0))
    store(out + rows(a)[:, None] * 128 + cols(a)[None, :], a)


# ---- TMA
@jit
def k_copy(pages_desc, order, out, n):
    # a ring of two slots through several uses, with pages that reach over the end of the tensor
    ring = alloc([2, 64, 128], BF16)
    full = alloc_barriers(2, expect_bytes=PAGE_BYTES)
    fence_async()
    for i in range(n):
        s = i % 2
        copy(pages_desc, ring.slot(s), [1, 1, 64, 128], [load(order + i), 1, 32, 0], barrier=full[s])
        barrier_wait(full[s], i // 2)
        a = smem_load(ring.slot(s))
        store(out + i * 8192 + rows(a)[:, None] * 128 + cols(a)[None, :], a)
        role_sync()


@jit
def k_tma_store(x, out_desc):
    tile = alloc([64, 64], BF16)
    r, c = tile_index(64, 64, 8)
    for i in range(2):
        smem_store(tile, load(x + (i * 64 + r[:, None]) * 64 + c[None, :]))
        fence_async()
        tma_store(out_desc, tile, [64, 64], [i * 64, 0])
        tma_store_wait()
