"""The dialect on FlagTree TLE (>= 0.7, Triton 3.6): mostly the API itself; layout hints vanish.

The linker copies what a kernel uses from here into the generated module.  Helpers are ``@triton.jit`` functions: FlagTree
inlines helpers that hold TLE operations since its PR #859, older cores leave them as calls, which deadlock in worker
partitions.  What is assumed about FlagTree beyond its documentation is listed in ``docs/targets.md``.
"""

import triton
import triton.experimental.tle.language as tle
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

jit = triton.jit
constexpr = tl.constexpr
BF16 = tl.bfloat16
F16 = tl.float16
F32 = tl.float32
FP8 = tl.float8e4nv
I32 = tl.int32
I64 = tl.int64
U8 = tl.uint8
PENDING = constexpr(tle.gpu.PENDING)  # plain strings in TLE; the JIT reads only constexpr globals
READY = constexpr(tle.gpu.READY)

program_id = tl.program_id
num_programs = tl.num_programs
static_range = tl.static_range
warp_specialize = tle.gpu.warp_specialize
grid_wait = gdc_wait
grid_launch_dependents = gdc_launch_dependents
load = tl.load
store = tl.store
trans = tl.trans
where = tl.where
maximum = tl.maximum
minimum = tl.minimum
absolute = tl.abs
exp2 = tl.exp2
log2 = tl.log2
lg2 = tl.log2
fdiv = tl.fdiv
cdiv = tl.cdiv
reduce_max = tl.max
reduce_sum = tl.sum
cumsum = tl.cumsum
alloc = tle.gpu.alloc
role_sync = tl.debug_barrier
barrier_wait = tle.gpu.barrier_wait
named_wait = tle.gpu.barrier_wait  # no phase: bar.sync
named_arrive = tle.gpu.barrier_arrive  # no phase: bar.arrive
copy = tle.gpu.copy
wgmma = tle.gpu.wgmma
cluster_barrier = tle.distributed_barrier


@triton.jit
def atomic_add(pointer, value, sem: tl.constexpr = tl.constexpr("acq_rel")):
    if sem == "release" or sem == "acq_rel":
        tl.debug_barrier()  # one thread executes the atomic: the others' earlier accesses have to come before it
    return tl.atomic_add(pointer, value, sem=sem, scope="gpu")


@triton.jit
def load_acquire(pointer):
    # One thread polls and the reduction hands its value to all: every thread of the role gets the same value, ordered after the read.
    value = tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $2, 0; mov.b32 $0, 0x80000000; @p ld.acquire.gpu.global.b32 $0, [$1]; bar.warp.sync 0xffffffff; }",
        "=&r,l,r", [pointer, tl.arange(0, 128)], dtype=tl.int32, is_pure=False, pack=1)  # fmt: skip
    return tl.max(value, 0)


@triton.jit
def arrive_release(pointer):
    atomic_add(pointer, 1, sem="release")


@triton.jit
def wait_at_least(pointer, value):
    seen = load_acquire(pointer)
    while seen < value:
        seen = load_acquire(pointer)


@triton.jit
def take_ticket(pointer):
    return atomic_add(pointer, 1)


@triton.jit
def reset_after(pointer, ticket, last):
    if ticket == last:
        tl.store(pointer, 0)
        tl.store(pointer + 1, 0)


@triton.jit
def as_int64(x):
    return tl.cast(x, tl.int64)


@triton.jit
def mma_zeros(m: tl.constexpr, n: tl.constexpr, dtype: tl.constexpr):
    return tl.full([m, n], 0.0, tl.float32)


@triton.jit
def full_rows(tile, value):
    return tl.full([tile.shape[0]], value, tl.float32)


@triton.jit
def full_cols(tile, value):
    return tl.full([tile.shape[1]], value, tl.float32)


@triton.jit
def rows(tile):
    return tl.arange(0, tile.shape[0])


@triton.jit
def cols(tile):
    return tl.arange(0, tile.shape[1])


@triton.jit
def cols_from(tile, start):
    return start + tl.arange(0, tile.shape[1])


@triton.jit
def distances(tile, start):
    return (start + tl.arange(0, tile.shape[0])[:, None] - tl.arange(0, tile.shape[1])[None, :]).to(tl.float32)


@triton.jit
def rcp(x):
    return 1.0 / x


@triton.jit
def tile_index(m: tl.constexpr, n: tl.constexpr, vec: tl.constexpr):
    return tl.arange(0, m), tl.arange(0, n)


@triton.jit
def tile_zeros(m: tl.constexpr, n: tl.constexpr, vec: tl.constexpr):
    return tl.full([m, n], 0.0, tl.float32)


@triton.jit
def vec_index(n: tl.constexpr):
    return tl.arange(0, n)


@triton.jit
def like_rows(vector, tile):
    return vector


@triton.jit
def like_cols(vector, tile):
    return vector


@triton.jit
def move_rows(vector, tile):
    return vector


@triton.jit
def move_cols(vector, tile):
    return vector


@triton.jit
def register_operand(tile, acc):
    return tile


@triton.jit
def where_le(a, b, x, y: tl.constexpr):
    return tl.where(a <= b, x, y)


@triton.jit
def uniform(x):
    return x  # a hint to ptxas that Gluon gives by assembly


@triton.jit
def wide_rows(tile):
    return tile


@triton.jit
def pin(vector):
    return vector  # a hint to ptxas that Gluon gives by assembly


@triton.jit
def alloc_plain(shape, dtype):
    return tle.gpu.alloc(shape, dtype, nv_mma_shared_layout=False)


@triton.jit
def alias(buffer, shape):
    return tle.gpu.alloc(shape, buffer.dtype, alias=buffer)


@triton.jit
def smem_store(buffer, tile):
    tl.store(tle.gpu.local_ptr(buffer), tile)


@triton.jit
def smem_load(buffer):
    return tl.load(tle.gpu.local_ptr(buffer))


@triton.jit
def zero_rows(buffer, start):
    at = tle.gpu.local_ptr(buffer)
    tile = tl.load(at)
    kept = (tl.arange(0, tile.shape[0]) < start)[:, None]
    tl.store(at, tl.where(kept, tile.to(tl.float32), 0.0).to(tile.dtype))


@triton.jit
def smem_load_rows(buffer, tile):
    return tl.load(tle.gpu.local_ptr(buffer))


@triton.jit
def smem_load_cols(buffer, tile):
    return tl.load(tle.gpu.local_ptr(buffer))


@triton.jit
def smem_operand(buffer, acc):
    return tl.load(tle.gpu.local_ptr(buffer))


@triton.jit
def fence_async():
    # The compiler's own fence insertion follows a wgmma operand to its allocation and looks for stores there: it does not
    # see a store through a worker partition's capture.  The barrier makes every thread's fence precede the wgmma.
    tl.inline_asm_elementwise("fence.proxy.async.shared::cta; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()


@triton.jit
def alloc_barriers(n: tl.constexpr, arrive_count: tl.constexpr = 1, init: tl.constexpr = PENDING, expect_bytes: tl.constexpr = 0, more: tl.constexpr = False):
    if expect_bytes:
        return tle.gpu.alloc_barriers(n, arrive_count, init, expect_bytes)
    else:
        return tle.gpu.alloc_barriers(n, arrive_count, init)


@triton.jit
def barrier_arrive(barrier):
    tle.gpu.barrier_arrive(barrier, phaseIdx=0)  # a phase selects the mbarrier; an arrival has none, so its value is not read


@triton.jit
def alloc_named(first_id: tl.constexpr, n: tl.constexpr, threads: tl.constexpr):
    return tle.gpu.alloc_barriers(n, threads)  # the compiler picks the hardware ids


@triton.jit
def named_wait_for(barrier, vector):
    tle.gpu.barrier_wait(barrier)
    return vector


@triton.jit
def evict_first(yes):
    pass  # a hint that TLE's copy cannot carry


@triton.jit
def tma_store(descriptor, buffer, shape, offsets):
    tle.gpu.copy(buffer, descriptor, shape, offsets)  # fences, stores and waits


@triton.jit
def tma_store_wait():
    pass  # tma_store has waited


@triton.jit
def wgmma_wait(pendings: tl.constexpr, acc):
    if isinstance(acc, tl.tuple):
        done = ()
        for i in tl.static_range(len(acc)):
            done = done + (tle.gpu.wgmma_wait(pendings, acc[i]),)
        return done
    else:
        return tle.gpu.wgmma_wait(pendings, acc)


@triton.constexpr_function
def cluster_mesh(n):
    return tle.device_mesh({"block_cluster": [("cluster_x", n)]})


@triton.jit
def cluster_dims(n: tl.constexpr):
    tle.shard_id(cluster_mesh(n), "cluster_x")  # any use of the mesh makes the launch a cluster launch


@triton.jit
def cluster_rank():
    return tl.inline_asm_elementwise("mov.u32 $0, %cluster_ctarank;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def remote_store(buffer, rank, tile):
    tl.store(tle.gpu.local_ptr(tle.remote(buffer, rank)), tile)


@triton.jit
def remote_load(buffer, rank):
    return tl.load(tle.gpu.local_ptr(tle.remote(buffer, rank)))


@triton.jit
def remote_load_rows(buffer, rank, tile, first):
    remote = tle.remote(buffer, rank)
    row = first + tl.arange(0, tile.shape[0])
    if len(buffer.shape) == 1:
        return tl.load(tle.gpu.local_ptr(remote, [row]))
    else:
        zero = tl.full([tile.shape[0], buffer.shape[1]], 0, tl.int32)
        return tl.load(tle.gpu.local_ptr(remote, [zero + row[:, None], zero + tl.arange(0, buffer.shape[1])[None, :]]))


@triton.jit
def cluster_push(buffer, rank, tile, barrier):
    tl.store(tle.gpu.local_ptr(tle.remote(buffer, rank)), tile)  # TLE has no st.async: cluster_push_wait is a cluster barrier


@triton.jit
def cluster_deal(buffer, tile, share, barrier):
    row = tl.arange(0, tile.shape[0])
    for rank in tl.static_range(tile.shape[0] // share):
        remote = tle.remote(buffer, rank)
        if len(tile.shape) == 1:
            tl.store(tle.gpu.local_ptr(remote, [row % buffer.shape[0]]), tile, mask=row // share == rank)
        else:
            zero = tl.full(tile.shape, 0, tl.int32)
            at = [zero + (row % buffer.shape[0])[:, None], zero + tl.arange(0, tile.shape[1])[None, :]]
            tl.store(tle.gpu.local_ptr(remote, at), tile, mask=(row // share == rank)[:, None])


@triton.jit
def cluster_push_wait(barrier, use, nbytes):
    tle.distributed_barrier()


@triton.jit
def cluster_arrive(barrier, n):
    pass  # TLE's arrivals stay in their CTA: cluster_wait is a cluster barrier


@triton.jit
def cluster_wait(barrier, use):
    tle.distributed_barrier()


@triton.jit
def compact(keep, values, buffer, start):
    tl.store(tle.gpu.local_ptr(buffer, [start + tl.cumsum(keep, 0) - keep]), values, mask=keep != 0)
    tl.debug_barrier()  # the store is a scatter: the compiler does not order the lanes before a later arrival of one of them
    return start + tl.sum(keep, 0)
