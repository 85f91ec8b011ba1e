"""Clusters."""
# ruff: noqa: F821 (the names are the dialect's; a target's prelude comes first)
# ==== kernel text: the same for every target
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
