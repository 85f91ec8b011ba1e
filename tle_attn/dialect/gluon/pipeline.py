"""Shared memory, barriers, TMA and wgmma."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

# ---- shared memory

@gluon.jit
def alloc(shape: constexpr, dtype: constexpr):
    return Buffer(gl.allocate_shared_memory(dtype, shape, _tile_shared_layout(shape, dtype)))


@gluon.jit
def alloc_plain(shape: constexpr, dtype: constexpr):
    return Buffer(gl.allocate_shared_memory(dtype, shape, _plain_shared_layout(shape)))


@gluon.jit
def alias(buffer, shape: constexpr):
    gl.static_assert(buffer.mem.numel == shape[0] * shape[1] * shape[2], "alias: [n, rows, cols] must have as many elements as the buffer")
    return Buffer(_reinterpret(buffer.mem, buffer.mem.dtype, shape, _tile_shared_layout(shape, buffer.mem.dtype)))


@gluon.jit
def smem_store(buffer, tile):
    buffer.mem.store(tile)


@gluon.jit
def smem_load(buffer):
    shape: constexpr = buffer.mem.shape
    vec: constexpr = 1 if len(shape) == 1 else min(128 // buffer.mem.dtype.primitive_bitwidth, shape[1])
    return buffer.mem.load(_whole_layout(shape, vec, gl.num_warps()))


@gluon.jit
def zero_rows(buffer, start):
    # as 32-bit words: of 8-bit and 16-bit elements the compiler would unpack every word, fp8 by way of fp16
    shape: constexpr = [buffer.mem.shape[0], buffer.mem.shape[1] * buffer.mem.dtype.primitive_bitwidth // 32]
    words = _reinterpret(buffer.mem, gl.int32, shape, _tile_shared_layout(shape, gl.int32))
    layout: constexpr = _whole_layout(shape, 4, gl.num_warps())
    kept = gl.arange(0, shape[0], gl.SliceLayout(1, layout)) < start
    words.store(gl.where(kept[:, None], words.load(layout), 0))


@gluon.jit
def smem_load_rows(buffer, tile):
    return buffer.mem.load(gl.SliceLayout(1, tile.type.layout))


@gluon.jit
def smem_load_cols(buffer, tile):
    return buffer.mem.load(gl.SliceLayout(0, tile.type.layout))


@gluon.jit
def smem_operand(buffer, acc):
    return buffer.mem.load(gl.DotOperandLayout(0, acc.type.layout, 32 // buffer.mem.dtype.primitive_bitwidth))


# ---- barriers

@gluon.constexpr_function
def _init_barriers(n, count, warps, more):
    """By one thread: the instruction takes a uniform address, so that a thread for each barrier becomes a loop, 17 ns a barrier on an H200."""
    inits = " ".join(f"@p mbarrier.init.shared::cta.b64 [$1+{8 * i}], {count};" for i in range(n))
    fence = "" if more else "fence.mbarrier_init.release.cluster; "
    return f"{{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; and.b32 t, t, {32 * warps - 1}; setp.eq.s32 p, t, 0; {inits} {fence}mov.u32 $0, 0; }}"


@gluon.jit
def alloc_barriers(n: constexpr, arrive_count: constexpr = 1, init: constexpr = PENDING, expect_bytes: constexpr = 0, more: constexpr = False):
    mem = gl.allocate_shared_memory(gl.int64, [n, 1], mbarrier.MBarrierLayout())
    # a copy's own arrival counts once, a role's arrival ARRIVALS times: its warps share them
    count: constexpr = arrive_count if expect_bytes else arrive_count * _ARRIVALS
    # Gluon's own init puts a barrier of the role between any two, 35 ns each on an H200
    gl.inline_asm_elementwise(_init_barriers(n, count, gl.num_warps(), more), "=r,r", [_address(mem)], dtype=gl.int32, is_pure=False, pack=1)
    if not more:
        role_sync()
    return Barriers(mem, init, expect_bytes)


@gluon.jit
def barrier_wait(barrier, use):
    # Gluon's own wait counts as a write of the barrier, so that the compiler puts a barrier of the role between any two of them: one more a loop step.
    gl.inline_asm_elementwise(
        "{ .reg .pred done; wait_${:uid}: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [$1], $2; @!done bra wait_${:uid}; mov.u32 $0, 0; }",
        "=r,r,r", [_barrier_address(barrier), (use & 1) ^ barrier.ready], dtype=gl.int32, is_pure=False, pack=1)


# Arrivals that a role makes at a barrier, shared evenly by its 1, 2, 4 or 8 warps.
_ARRIVALS = gl.constexpr(8)


@gluon.jit
def barrier_arrive(barrier):
    # Every warp arrives for itself: Gluon's own arrive has one thread arrive for the role, behind a barrier of all its warps.
    gl.inline_asm_elementwise(
        "{ .reg .pred p; bar.warp.sync 0xffffffff; elect.sync _|p, 0xffffffff; @p mbarrier.arrive.release.cta.shared::cta.b64 _, [$1], $2; mov.u32 $0, 0; }",
        "=r,r,r", [_barrier_address(barrier), _ARRIVALS // gl.num_warps()], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def alloc_named(first_id: constexpr, n: constexpr, threads: constexpr):
    return NamedBarriers(first_id, threads)


@gluon.jit
def named_wait(barrier):
    gl.inline_asm_elementwise("bar.sync $1, $2; mov.u32 $0, 0;", "=r,r,r", [barrier.id, barrier.threads], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def named_wait_for(barrier, vector):
    # Arithmetic moves over a barrier unless it depends on something read behind it: the clock, of which no bit survives %ctaid.z, which is 0.
    # Two elements a thread are the two rows that a thread has in an accumulator of 64 rows, so that each thread comes once.
    return gl.inline_asm_elementwise(
        "{ .reg .b32 t, z; .reg .f32 f; bar.sync $4, $6; mov.u32 t, %clock; mov.u32 z, %ctaid.z; and.b32 t, t, z; mov.b32 f, t; add.f32 $0, $2, f; add.f32 $1, $3, f; }",
        "=&f,=f,f,f,r,r,r,r", [vector, barrier.id, barrier.threads], dtype=gl.float32, is_pure=False, pack=2)


@gluon.jit
def named_arrive(barrier):
    gl.inline_asm_elementwise("bar.arrive $1, $2; mov.u32 $0, 0;", "=r,r,r", [barrier.id, barrier.threads], dtype=gl.int32, is_pure=False, pack=1)


# ---- TMA

@gluon.jit
def copy(descriptor, buffer, shape: constexpr, offsets, barrier):
    gl.static_assert(barrier.expect_bytes > 0, "copy: its barrier needs expect_bytes, the bytes of the copy")
    mbarrier.expect(barrier.mem, barrier.expect_bytes)
    _tma_load(descriptor, offsets, barrier.mem, buffer.mem.reshape(shape))


@gluon.jit
def evict_first(yes):
    # Gluon's copies take no cache policy before 3.9: the compile hook makes each of them two, with and without this policy.
    assembly: constexpr = _hooked("policy", "setp.ne.s32 tle_attn_evict, $1, 0; createpolicy.fractional.L2::evict_first.b64 tle_attn_policy, 1.0; mov.u32 $0, 0;")
    gl.inline_asm_elementwise(assembly, "=r,r", [yes], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def tma_store(descriptor, buffer, shape: constexpr, offsets):
    _tma_store(descriptor, offsets, buffer.mem.reshape(shape))


@gluon.jit
def tma_store_wait():
    # Gluon's wait alone covers the reads of shared memory; the stores are visible to others after the full wait.
    gl.inline_asm_elementwise("cp.async.bulk.wait_group 0; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    tma.store_wait(0)


# ---- wgmma

@gluon.jit
def wgmma(a, b, acc=None, trans_a: constexpr = False, trans_b: constexpr = False):
    if isinstance(a, gl.tensor):
        lhs = a
    elif trans_a:
        lhs = a.mem.permute((1, 0))
    else:
        lhs = a.mem
    if trans_b:
        rhs = b.mem.permute((1, 0))
    else:
        rhs = b.mem
    if b.mem.dtype == gl.float8e4nv:
        gl.static_assert(trans_b and not trans_a, "wgmma: fp8 operands in shared memory must be K-contiguous: a as [m, k], b as [n, k] with trans_b")
    if acc is None:
        zero = gl.full([lhs.shape[0], rhs.shape[1]], 0.0, gl.float32, _mma_layout(lhs.shape[0], rhs.shape[1], lhs.dtype, gl.num_warps()))
        return warpgroup_mma(lhs, rhs, zero, use_acc=False, is_async=True)
    else:
        return warpgroup_mma(lhs, rhs, acc, is_async=True)


@gluon.jit
def wgmma_wait(pendings: constexpr, acc):
    if isinstance(acc, gl.tuple):
        return warpgroup_mma_wait(pendings, deps=acc)
    else:
        return warpgroup_mma_wait(pendings, deps=[acc])
