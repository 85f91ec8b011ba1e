"""Aliases, layouts, handles with TLE's spelling, and global memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.language.core import _aggregate as aggregate
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

jit = gluon.jit
constexpr = gl.constexpr

BF16 = gl.bfloat16
F16 = gl.float16
F32 = gl.float32
FP8 = gl.float8e4nv
I32 = gl.int32
I64 = gl.int64
U8 = gl.uint8
PENDING = gl.constexpr(0)
READY = gl.constexpr(1)

program_id = gl.program_id
num_programs = gl.num_programs
static_range = gl.static_range
warp_specialize = gl.warp_specialize
grid_wait = gdc_wait
grid_launch_dependents = gdc_launch_dependents
load = gl.load
store = gl.store
where = gl.where
maximum = gl.maximum
minimum = gl.minimum
absolute = gl.abs
exp2 = gl.exp2
log2 = gl.log2
fdiv = gl.fdiv
cdiv = gl.cdiv
reduce_max = gl.max
reduce_sum = gl.sum
fence_async = fence_async_shared

# Names that changed between Triton 3.6 and 3.9. The new name is asked for first: 3.9 keeps some old ones as functions that raise.
role_sync = getattr(gl, "barrier", None) or gl.thread_barrier
_tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
_reinterpret = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret


# ---- layouts

@gluon.constexpr_function
def _tile_shared_layout(shape, dtype):
    """Of a wgmma/TMA tile: column blocks of up to 128 bytes, swizzled over that width."""
    bits = dtype.primitive_bitwidth
    return gl.NVMMASharedLayout(min(128, shape[-1] * bits // 8), bits, rank=2)


@gluon.constexpr_function
def _plain_shared_layout(shape):
    """Row-major, of the last two dimensions at most: one before them counts slots. A count of rows that is no power of two counts slots, too."""
    vectors = len(shape) == 1 or (len(shape) == 2 and shape[0] & (shape[0] - 1))
    return gl.SwizzledSharedLayout(1, 1, 1, [0] if vectors else [1, 0])


@gluon.constexpr_function
def _is_plain_matrix(shape, layout):
    return isinstance(layout, gl.SwizzledSharedLayout) and len(shape) == len(layout.order) == 2


@gluon.constexpr_function
def _mma_layout(m, n, dtype, warps):
    """Of a wgmma accumulator: warpgroups beyond m / 64 share the columns."""
    warps_m = min(warps, m // 16)
    return gl.NVMMADistributedLayout([3, 0], [warps_m, warps // warps_m], [16, min(256, n // (warps // warps_m)), 256 // dtype.primitive_bitwidth])


@gluon.constexpr_function
def _coalesced_layout(cols, vec, warps):
    """`vec` neighbouring columns a thread, neighbouring threads along a row."""
    lanes = min(32, cols // vec)
    return gl.BlockedLayout([1, vec], [32 // lanes, lanes], [warps, 1], [1, 0])


@gluon.constexpr_function
def _vector_layout(vec, warps):
    return gl.BlockedLayout([vec], [32], [warps], [0])


@gluon.constexpr_function
def _whole_layout(shape, vec, warps):
    """Of a whole vector or tile."""
    return _vector_layout(vec, warps) if len(shape) == 1 else _coalesced_layout(shape[1], vec, warps)


# ---- handles that keep TLE's spelling: ring.slot(i), barriers[i]

@aggregate
class Buffer:
    """A shared-memory tile [rows, cols], vector, or ring of them."""

    mem: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, mem):
        self.mem = mem

    @gluon.jit
    def slot(self, i):
        if _is_plain_matrix(self.mem.shape, self.mem.layout):  # its slots are its rows
            return Buffer(_reinterpret(self.mem, self.mem.dtype, self.mem.shape, _plain_shared_layout([1])).index(i))
        else:
            return Buffer(self.mem.index(i))


@aggregate
class Barrier:
    """One mbarrier of an array; a wait names the logical use of it."""

    mem: gl.shared_memory_descriptor
    array: gl.shared_memory_descriptor
    index: gl.tensor
    ready: gl.constexpr
    expect_bytes: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, mem, array, index, ready, expect_bytes):
        self.mem = mem
        self.array = array
        self.index = index
        self.ready = gl.constexpr(ready)
        self.expect_bytes = gl.constexpr(expect_bytes)


@aggregate
class Barriers:
    """An array of mbarriers."""

    mem: gl.shared_memory_descriptor
    ready: gl.constexpr
    expect_bytes: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, mem, ready, expect_bytes):
        self.mem = mem
        self.ready = gl.constexpr(ready)
        self.expect_bytes = gl.constexpr(expect_bytes)

    @gluon.jit
    def __getitem__(self, i):
        return Barrier(self.mem.index(i), self.mem, gl.to_tensor(i), self.ready, self.expect_bytes)


@aggregate
class NamedBarrier:
    """One hardware barrier: its id, and the number of threads that arrive or wait at it."""

    id: gl.tensor
    threads: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, id, threads):
        self.id = id
        self.threads = gl.constexpr(threads)


@aggregate
class NamedBarriers:
    """Hardware barriers with neighbouring ids."""

    first_id: gl.constexpr
    threads: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, first_id, threads):
        self.first_id = gl.constexpr(first_id)
        self.threads = gl.constexpr(threads)

    @gluon.jit
    def __getitem__(self, i):
        return NamedBarrier(gl.to_tensor(self.first_id + i), self.threads)


# ---- global memory

@gluon.jit
def as_int64(x):
    return gl.cast(x, gl.int64)


@gluon.jit
def atomic_add(pointer, value, sem: constexpr = constexpr("acq_rel")):
    if sem == "release" or sem == "acq_rel":
        role_sync()  # one thread executes the atomic: the others' earlier accesses have to come before it
    return gl.atomic_add(pointer, value, sem=sem, scope="gpu")


@gluon.jit
def load_acquire(pointer):
    # One thread polls and the reduction hands its value to all: every thread of the role gets the same value, ordered after the read.
    thread = gl.arange(0, 32 * gl.num_warps(), _vector_layout(1, gl.num_warps()))
    value = gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $2, 0; mov.b32 $0, 0x80000000; @p ld.acquire.gpu.global.b32 $0, [$1]; bar.warp.sync 0xffffffff; }",
        "=&r,l,r", [pointer, thread], dtype=gl.int32, is_pure=False, pack=1)
    return gl.max(value, 0)


@gluon.constexpr_function
def _one_thread(warps, assembly):
    """Assembly in which predicate `one` holds in one thread of a role that starts at a multiple of its warps."""
    return f"{{ .reg .pred one, p; .reg .b32 t; mov.u32 t, %tid.x; and.b32 t, t, {32 * warps - 1}; setp.eq.s32 one, t, 0; {assembly} }}"


@gluon.jit
def arrive_release(pointer):
    role_sync()  # one thread releases what all have written
    assembly: constexpr = _one_thread(gl.num_warps(), "@one red.release.gpu.global.add.s32 [$1], 1; mov.u32 $0, 0;")
    gl.inline_asm_elementwise(assembly, "=r,l", [pointer], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def wait_at_least(pointer, value):
    # One thread polls, because every poll is a read of the line that arrivals wait in turn for; the barrier after it holds the others back.
    assembly: constexpr = _one_thread(gl.num_warps(), """@!one bra seen_${:uid};
        poll_${:uid}: ld.acquire.gpu.global.b32 t, [$1]; setp.lt.s32 p, t, $2; @p bra poll_${:uid}; seen_${:uid}: bar.warp.sync 0xffffffff; mov.u32 $0, 0;""")
    gl.inline_asm_elementwise(assembly, "=r,l,r", [pointer, value], dtype=gl.int32, is_pure=False, pack=1)
    role_sync()


@gluon.jit
def take_ticket(pointer):
    # inc, which never wraps here: the additions of a warp the compiler adds up first, and hands each its share as soon as the memory has answered, which is a wait
    assembly: constexpr = _one_thread(gl.num_warps(), "mov.u32 $0, -1; @one atom.relaxed.gpu.global.inc.u32 $0, [$1], 0x7fffffff;")
    return gl.inline_asm_elementwise(assembly, "=&r,l", [pointer], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def reset_after(pointer, ticket, last):
    gl.inline_asm_elementwise("{ .reg .pred p; setp.eq.s32 p, $2, $3; @p st.global.u32 [$1], 0; @p st.global.u32 [$1+4], 0; mov.u32 $0, 0; }",
                              "=r,l,r,r", [pointer, ticket, last], dtype=gl.int32, is_pure=False, pack=1)
