"""One small kernel per operation of the dialect, or per small group: kernel text that runs behind the prelude of every target.

`op_cases.py` beside it says how each is launched and what it must compute.
"""
# ruff: noqa: F821 (the names are the dialect's; a target's prelude comes first)
# ==== kernel text: the same for every target
PAGE_BYTES = constexpr(64 * 128 * 2)


# ---- programs and global memory
@jit
def k_programs(out):
    me = program_id(1) * num_programs(0) + program_id(0)
    for j in static_range(4):
        store(out + as_int64(me) * 4 + j, me * 10 + j)


@jit
def k_masked(x, out, n):
    i = vec_index(256)
    keep = i < n
    v = load(x + i, mask=keep, other=-1, cache_modifier=".cg")
    store(out + i, where(v > 0, v, i), mask=i != 3)


@jit
def k_atomic(x, partial, counter, out):
    # every CTA publishes a part; the last one to arrive adds them up and leaves the counter at zero
    me = program_id(0)
    i = vec_index(128)
    store(partial + me * 128 + i, load(x + me * 128 + i) * 2)
    arrived = atomic_add(counter, 1)
    if arrived == num_programs(0) - 1:
        total = load(partial + i, cache_modifier=".cg")
        for j in range(1, num_programs(0)):
            total += load(partial + j * 128 + i, cache_modifier=".cg")
        store(out + i, total)
        store(counter, 0)


@jit
def k_poll(x, published, flag, out):
    # CTA 0 publishes; the others wait for the flag
    me = program_id(0)
    i = vec_index(128)
    if me == 0:
        store(published + i, load(x + i) + 1)
        atomic_add(flag, 7, sem="release")
    else:
        seen = load_acquire(flag)
        while seen < 7:
            seen = load_acquire(flag)
        store(out + (me - 1) * 128 + i, load(published + i, cache_modifier=".cg") * seen)


@jit
def k_tickets(x, partial, counters, out):
    # every CTA publishes a part, waits for all, and adds them up; the last one to be done with the counters zeroes them
    me = program_id(0)
    i = vec_index(128)
    store(partial + me * 128 + i, load(x + me * 128 + i) * 2)
    arrive_release(counters)
    wait_at_least(counters, num_programs(0))
    ticket = take_ticket(counters + 1)
    total = load(partial + i, cache_modifier=".cg")
    for j in range(1, num_programs(0)):
        total += load(partial + j * 128 + i, cache_modifier=".cg")
    store(out + me * 128 + i, total * (me + 1))
    reset_after(counters, ticket, num_programs(0) - 1)


@jit
def k_dependents(x, out):
    grid_wait()
    i = vec_index(128)
    store(out + i, load(x + i) + 1)
    grid_launch_dependents()


# ---- tiles in registers
@jit
def k_elementwise(x, y, out, n):
    r, c = tile_index(32, 64, 4)
    at = r[:, None] * 64 + c[None, :]
    a = load(x + at)
    b = load(y + at)
    store(out + at, maximum(a, b) + tile_zeros(32, 64, 4))
    store(out + 2048 + at, minimum(a, b))
    store(out + 4096 + at, exp2(a))
    store(out + 6144 + at, log2(b))
    store(out + 8192 + at, fdiv(a, b))
    store(out + 10240 + at, a + (cdiv(n, 7) + maximum(n, 3) - minimum(n, 100)).to(F32))


@jit
def k_reduce(x, row_max, col_sum, scalars):
    r, c = tile_index(32, 64, 4)
    a = load(x + r[:, None] * 64 + c[None, :])
    m = reduce_max(a, 1)
    s = reduce_sum(a, 0)
    store(row_max + rows(a), m)
    store(col_sum + cols(a), s)
    store(scalars, reduce_max(m, 0))
    store(scalars + 1, reduce_sum(s, 0))


@jit
def k_cumsum(x, out):
    i = vec_index(256)
    store(out + i, cumsum(load(x + i)))


@jit
def k_where_le(x, out, n):
    r, c = tile_index(32, 64, 4)
    v = load(x + r[:, None] * 64 + c[None, :])
    v = where_le(c[None, :], r[:, None] + uniform(n), v, -3.5)
    store(out + r[:, None] * 64 + c[None, :], v)


@jit
def k_positions(out, start):
    s = mma_zeros(64, 128, BF16)
    at = (rows(s) * 128)[:, None] + cols(s)[None, :]
    store(out + at, distances(s, start))
    store(out + 8192 + at, (rows(s)[:, None] * 1000 + cols_from(s, start)[None, :]).to(F32))


@jit
def k_approximate(x, out):
    r, c = tile_index(32, 64, 4)
    at = r[:, None] * 64 + c[None, :]
    v = load(x + at)
    store(out + at, absolute(v))
    store(out + 2048 + at, lg2(absolute(v)))
    store(out + 4096 + at, rcp(absolute(v)))


@jit
def k_vectors(x, v, w, out):
    r, c = tile_index(32, 64, 4)
    at = r[:, None] * 64 + c[None, :]
    a = load(x + at)
    b = a * full_rows(a, 2.0)[:, None] + full_cols(a, 0.5)[None, :]
    # of the same layout: only re-labelled
    b = b - like_rows(reduce_max(b, 1), a)[:, None]
    b = b - like_cols(reduce_max(b, 0), a)[None, :]
    # of another layout: moved
    b = b + move_rows(load(v + vec_index(32)), a)[:, None]
    b = b + move_cols(load(w + vec_index(64)), a)[None, :]
    store(out + rows(a)[:, None] * 64 + cols(a)[None, :], b)


@jit
def k_trans(x, out):
    r, c = tile_index(32, 64, 4)
    a = trans(load(x + r[:, None] * 64 + c[None, :]))
    store(out + rows(a)[:, None] * 32 + cols(a)[None, :], a)


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


# ---- wgmma
@jit
def load_tile(x, m, n):
    r, c = tile_index(m, n, 8)
    return load(x + r[:, None] * n + c[None, :])


@jit
def store_tile(out, tile, n):
    store(out + rows(tile)[:, None] * n + cols(tile)[None, :], tile)


@jit
def k_wgmma(a, b, out):
    # all majors: [64, 64] @ [64, 32]
    a_k = alloc([64, 64], BF16)
    a_m = alloc([64, 64], BF16)
    b_k = alloc([32, 64], BF16)
    b_n = alloc([64, 32], BF16)
    ta = load_tile(a, 64, 64)
    tb = load_tile(b, 64, 32)
    smem_store(a_k, ta)
    smem_store(a_m, trans(ta))
    smem_store(b_n, tb)
    smem_store(b_k, trans(tb))
    fence_async()
    o = wgmma_wait(0, wgmma(a_k, b_n))
    store_tile(out, o, 32)
    o = wgmma_wait(0, wgmma(a_m, b_n, trans_a=True))
    store_tile(out + 2048, o, 32)
    o = wgmma_wait(0, wgmma(a_k, b_k, trans_b=True))
    store_tile(out + 4096, o, 32)
    o = wgmma_wait(0, wgmma(a_m, b_k, mma_zeros(64, 32, BF16), trans_a=True, trans_b=True))
    store_tile(out + 6144, o, 32)


@jit
def k_wgmma_pipelined(a, b, out):
    # two groups in flight; the second accumulates onto ones
    a_smem = alloc([2, 64, 64], F16)
    b_smem = alloc([64, 64], F16)
    smem_store(a_smem.slot(0), load_tile(a, 64, 64))
    smem_store(a_smem.slot(1), load_tile(a + 4096, 64, 64))
    smem_store(b_smem, load_tile(b, 64, 64))
    fence_async()
    first = wgmma(a_smem.slot(0), b_smem)
    second = wgmma(a_smem.slot(1), b_smem, mma_zeros(64, 64, F16) + 1.0)
    first = wgmma_wait(1, first)
    store_tile(out, first, 64)
    second = wgmma_wait(0, second)
    store_tile(out + 4096, second, 64)
    third = wgmma(a_smem.slot(0), b_smem, second)
    fourth = wgmma(a_smem.slot(1), b_smem, first)
    third, fourth = wgmma_wait(0, (third, fourth))
    store_tile(out + 8192, third, 64)
    store_tile(out + 12288, fourth, 64)


@jit
def k_operand(q, k, out):
    # an operand that is read into registers, and row sums that are pinned before the wait
    q_smem = alloc([64, 128], BF16)
    k_smem = alloc([64, 128], BF16)
    smem_store(q_smem, load_tile(q, 64, 128))
    smem_store(k_smem, load_tile(k, 64, 128))
    fence_async()
    s = wgmma(smem_operand(q_smem, mma_zeros(64, 64, BF16)), k_smem, trans_b=True)
    l = pin(full_rows(mma_zeros(64, 64, BF16), 3.0))
    s = wgmma_wait(0, s)
    store_tile(out, wide_rows(s * l[:, None]), 64)


@jit
def k_wgmma_register(q, k, v, out):
    # scores as the register operand of the second product
    q_smem = alloc([64, 128], BF16)
    k_smem = alloc([64, 128], BF16)
    v_smem = alloc([64, 128], BF16)
    smem_store(q_smem, load_tile(q, 64, 128))
    smem_store(k_smem, load_tile(k, 64, 128))
    smem_store(v_smem, load_tile(v, 64, 128))
    fence_async()
    o = mma_zeros(64, 128, BF16)
    s = wgmma_wait(0, wgmma(q_smem, k_smem, trans_b=True))
    p = register_operand(s.to(BF16), o)
    o = wgmma_wait(0, wgmma(p, v_smem, o))
    store_tile(out, o, 128)


@jit
def k_wgmma_fp8(a, b, out):
    a_smem = alloc([64, 64], FP8)
    b_smem = alloc([16, 64], FP8)
    smem_store(a_smem, load_tile(a, 64, 64))
    smem_store(b_smem, load_tile(b, 16, 64))
    fence_async()
    o = wgmma_wait(0, wgmma(a_smem, b_smem, trans_b=True))
    store_tile(out, o, 16)


# ---- roles and barriers
@jit
def consume(out, ring, full, empty, n):
    total = mma_zeros(64, 64, BF16)
    for i in range(n):
        s = i % 3
        barrier_wait(full[s], i // 3)
        product = wgmma_wait(0, wgmma(ring.slot(s), ring.slot(s)))
        barrier_arrive(empty[s])
        total += product
    store_tile(out + program_id(0) * 4096, total, 64)


@jit
def produce(x_desc, ring, full, empty, n):
    evict_first(n)
    for i in range(n):
        s = i % 3
        barrier_wait(empty[s], i // 3)
        copy(x_desc, ring.slot(s), [1, 64, 64], [program_id(0) * n + i, 0, 0], barrier=full[s])


@jit
def k_roles(x_desc, out, n):
    ring = alloc([3, 64, 64], BF16)
    full = alloc_barriers(3, expect_bytes=8192)
    empty = alloc_barriers(3, init=READY)
    fence_async()
    warp_specialize([(consume, (out, ring, full, empty, n)), (produce, (x_desc, ring, full, empty, n))], [1], [24])


@jit
def take_turns(out, box, filled, read, n):
    i = vec_index(128)
    for t in range(n):
        named_wait(filled[t % 3])
        store(out + t * 128 + i, smem_load(box.slot(t % 3)))
        named_arrive(read[t % 3])


@jit
def give_turns(x, box, filled, read, n):
    i = vec_index(128)
    for t in range(n):
        if t >= 3:
            named_wait(read[t % 3])
        smem_store(box.slot(t % 3), load(x + t * 128 + i) + 1)
        named_arrive(filled[t % 3])
    for t in range(3):
        named_wait(read[t])


@jit
def k_named(x, out, n):
    box = alloc_plain([3, 128], I32)
    filled = alloc_named(8, 3, 256)
    read = alloc_named(11, 3, 256)
    warp_specialize([(take_turns, (out, box, filled, read, n)), (give_turns, (x, box, filled, read, n))], [4], [40])


@jit
def alternate(out, box, turn, w: constexpr, n):
    # what a role adds to the box depends on what the other left there: turns that are not kept give other numbers
    tile = mma_zeros(64, 8, BF16)
    total = full_rows(tile, 0.0)
    if w == 1:
        named_arrive(turn[0])
    for t in range(n):
        total = named_wait_for(turn[w], total)
        total = total + smem_load_rows(box.slot(0), tile) * 2.0 + rows(tile).to(F32)
        smem_store(box.slot(0), total)
        named_arrive(turn[1 - w])
    if w == 0:
        named_wait(turn[0])
    store(out + w * 64 + rows(tile), total)


@jit
def k_turns(out, n):
    box = alloc_plain([1, 64], F32)
    turn = alloc_named(8, 2, 256)
    smem_store(box.slot(0), vec_index(64).to(F32))
    warp_specialize([(alternate, (out, box, turn, 0, n)), (alternate, (out, box, turn, 1, n))], [4], [40])


# ---- clusters
@jit
def k_cluster_pull(x, out):
    cluster_dims(4)
    mine = alloc_plain([16, 64], F32)
    r, c = tile_index(16, 64, 4)
    smem_store(mine, load(x + program_id(0) * 1024 + r[:, None] * 64 + c[None, :]))
    cluster_barrier()
    total = remote_load(mine, 0)
    for peer in static_range(3):
        total += remote_load(mine, peer + 1) * (peer + 2)
    cluster_barrier()
    store_tile(out + program_id(0) * 1024, total, 64)


@jit
def k_cluster_store(x, out):
    cluster_dims(4)
    inbox = alloc_plain([16, 64], F32)
    short = alloc_plain([16], F32)
    r, c = tile_index(16, 64, 4)
    a = load(x + program_id(0) * 1024 + r[:, None] * 64 + c[None, :])
    cluster_barrier()
    next_rank = (cluster_rank() + 1) % 4
    remote_store(inbox, next_rank, a)
    remote_store(short, next_rank, reduce_max(a, 1))
    cluster_barrier()
    b = smem_load(inbox)
    b = b - smem_load_rows(short, b)[:, None]
    store_tile(out + program_id(0) * 1024, b, 64)


@jit
def k_cluster_push(x, out):
    # two exchanges over one barrier; a cluster barrier keeps the second from overtaking the first
    cluster_dims(4)
    inbox = alloc_plain([4, 16, 64], F32)
    arrived = alloc_barriers(2)
    cluster_barrier()
    r, c = tile_index(16, 64, 4)
    a = load(x + program_id(0) * 1024 + r[:, None] * 64 + c[None, :])
    for use in static_range(2):
        for peer in static_range(4):
            cluster_push(inbox.slot(cluster_rank()), peer, a * (peer + 1), arrived[1])
        cluster_push_wait(arrived[1], use, 16384)
        total = smem_load(inbox.slot(0))
        for peer in static_range(3):
            total += smem_load(inbox.slot(peer + 1))
        store_tile(out + (program_id(0) * 2 + use) * 1024, total, 64)
        a = total
        cluster_barrier()


@jit
def push_maxima(x, out, inbox, arrived):
    # short vectors, from both CTAs to rank 0 alone
    r, c = tile_index(16, 64, 4)
    a = load(x + program_id(0) * 1024 + r[:, None] * 64 + c[None, :])
    rank = cluster_rank()
    for i in static_range(2):
        cluster_push(inbox.slot(2 * i + rank), 0, reduce_max(a * (i + 1), 1), arrived[i])
        if rank == 0:
            cluster_push_wait(arrived[i], 0, 128)
            b = a - smem_load_rows(inbox.slot(2 * i), a)[:, None] - smem_load_rows(inbox.slot(2 * i + 1), a)[:, None]
            store_tile(out + (program_id(0) + i) * 1024, b, 64)
        else:
            cluster_push_wait(arrived[i], 0, 0)


@jit
def other_role(out, n):
    store(out + n + program_id(0) * 32 + vec_index(32), 7.0)


@jit
def k_cluster_roles(x, out, n):
    cluster_dims(2)
    inbox = alloc_plain([4, 16], F32)
    arrived = alloc_barriers(2)
    cluster_barrier()
    warp_specialize([(push_maxima, (x, out, inbox, arrived)), (other_role, (out, n))], [1], [24])


@jit
def k_cluster_deal(x, out):
    # quarter r of every CTA's tile and of its row maxima go to CTA r
    cluster_dims(4)
    inbox = alloc_plain([4, 4, 64], F32)
    tops = alloc_plain([4, 16], F32)
    arrived = alloc_barriers(1)
    cluster_barrier()
    rank = cluster_rank()
    r, c = tile_index(16, 64, 4)
    a = load(x + program_id(0) * 1024 + r[:, None] * 64 + c[None, :])
    cluster_deal(inbox.slot(rank), a, 4, arrived[0])
    cluster_deal(tops.slot(rank), reduce_max(a, 1), 4, arrived[0])
    cluster_push_wait(arrived[0], 0, 4160)
    total = smem_load(inbox.slot(0))
    total = total - remote_load_rows(tops.slot(0), rank, total, rank * 4)[:, None]
    for peer in static_range(3):
        total += smem_load(inbox.slot(peer + 1)) - remote_load_rows(tops.slot(peer + 1), rank, total, rank * 4)[:, None]
    store_tile(out + program_id(0) * 256, total, 64)


@jit
def hand_over(x, out, kept, published, taken):
    # each CTA reads its half of both tiles; nobody leaves before its own was read
    r, c = tile_index(16, 64, 4)
    rank = cluster_rank()
    smem_store(kept, load(x + program_id(0) * 1024 + r[:, None] * 64 + c[None, :]))
    cluster_arrive(published[rank], 2)
    total = tile_zeros(8, 64, 4)
    for peer in static_range(2):
        cluster_wait(published[peer], 0)
        total += remote_load_rows(kept, peer, total, rank * 8) * (peer + 1)
    cluster_arrive(taken[0], 2)
    cluster_wait(taken[0], 0)
    store_tile(out + program_id(0) * 512, total, 64)


@jit
def k_cluster_hands(x, out, n):
    cluster_dims(2)
    kept = alloc_plain([16, 64], F32)
    published = alloc_barriers(2, more=True)
    taken = alloc_barriers(1, 2)
    cluster_barrier()
    warp_specialize([(hand_over, (x, out, kept, published, taken)), (other_role, (out, n))], [1], [24])


# ---- votes
@jit
def k_compact(x, out, n):
    found = alloc_plain([512], I32)
    count = 0
    for t in range(n):
        i = t * 64 + vec_index(64)
        v = load(x + i)
        count = compact((v > 0).to(I32), i * 10 + v, found, count)
    i = vec_index(512)
    store(out + i, smem_load(found), mask=i < count)
    store(out + 512, count)
