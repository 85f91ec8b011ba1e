"""Programs, global memory, and tiles in registers."""
# ruff: noqa: F821 (the names are the dialect's; a target's prelude comes first)
# ==== kernel text: the same for every target
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
