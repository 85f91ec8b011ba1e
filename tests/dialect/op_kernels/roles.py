"""Roles, barriers and votes."""
# ruff: noqa: F821 (the names are the dialect's; a target's prelude comes first)
# ==== kernel text: the same for every target
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
