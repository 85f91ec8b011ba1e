"""Kernel text of the emulator tests: partial sums of a cluster of 4 reduced over distributed shared memory."""
# ruff: noqa: F403, F405
from tle_attn.dialect.cpu import *

# ==== kernel text: the same for every target
CTAS = constexpr(4)


@jit
def load_quarter(x, part):
    r, c = tile_index(32, 8, 4)
    return load(x + (program_id(0) * CTAS + part) * 256 + r[:, None] * 8 + c[None, :])


@jit
def store_quarter(out, tile):
    store(out + program_id(0) * 256 + rows(tile)[:, None] * 8 + cols(tile)[None, :], tile)


@jit
def push(x, out, n):
    """Every rank sends quarter r of its partial sums to rank r, which adds what arrives; n exchanges."""
    cluster_dims(CTAS)
    inbox = alloc_plain([CTAS, 32, 8], F32)
    arrived = alloc_barriers(1)
    rank = cluster_rank()
    for use in range(n):
        cluster_barrier()
        for r in range(CTAS):
            cluster_push(inbox.slot(rank), r, load_quarter(x, r), arrived[0])
        cluster_push_wait(arrived[0], use, CTAS * 32 * 8 * 4)
        total = smem_load(inbox.slot(0))
        for r in range(1, CTAS):
            total += smem_load(inbox.slot(r))
        store_quarter(out, total)


@jit
def pull(x, out, n):
    """Every rank keeps its partial sums and reads quarter `rank` of all others."""
    cluster_dims(CTAS)
    kept = alloc_plain([CTAS, 32, 8], F32)
    rank = cluster_rank()
    for use in range(n):
        for r in range(CTAS):
            smem_store(kept.slot(r), load_quarter(x, r))
        cluster_barrier()
        total = remote_load(kept.slot(rank), 0)
        for r in range(1, CTAS):
            total += remote_load(kept.slot(rank), r)
        cluster_barrier()
        store_quarter(out, total)


@jit
def deal(x, out, n):
    """Every rank writes its quarters into the others' memory."""
    cluster_dims(CTAS)
    inbox = alloc_plain([CTAS, 32, 8], F32)
    rank = cluster_rank()
    for use in range(n):
        cluster_barrier()
        for r in range(CTAS):
            remote_store(inbox.slot(rank), r, load_quarter(x, r))
        cluster_barrier()
        total = smem_load(inbox.slot(0))
        for r in range(1, CTAS):
            total += smem_load(inbox.slot(r))
        store_quarter(out, total)
