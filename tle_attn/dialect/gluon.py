"""The dialect on stock Triton's Gluon, 3.6 to 3.9, for sm_90a: prelude source, of which the linker copies what a kernel uses.

Gluon's own calls serve wherever there is one. Assembly serves for what Gluon lacks: named barriers, acquire loads, warp votes and clusters of CTAs compiled
one program per CTA. Shared-memory addresses and cluster launches also need a change of the compiler's intermediate texts, made by a compile hook that is
installed when a module that uses them is imported. Their assembly holds text which ptxas refuses and only the hook removes, so that a compile without the
hook fails instead of giving a wrong kernel, and no cache can hold a wrong one.
"""

import os
import re
import tempfile

import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
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
    # One lane of each warp polls; the barrier after it holds the others back.
    gl.inline_asm_elementwise(
        """{ .reg .pred p, lane; .reg .b32 t; mov.u32 t, %laneid; setp.ne.s32 lane, t, 0; @lane bra seen_${:uid};
        poll_${:uid}: ld.acquire.gpu.global.b32 t, [$1]; setp.lt.s32 p, t, $2; @p bra poll_${:uid}; seen_${:uid}: bar.warp.sync 0xffffffff; mov.u32 $0, 0; }""",
        "=r,l,r", [pointer, value], dtype=gl.int32, is_pure=False, pack=1)
    role_sync()


@gluon.jit
def take_ticket(pointer):
    assembly: constexpr = _one_thread(gl.num_warps(), "mov.u32 $0, -1; @one atom.relaxed.gpu.global.add.u32 $0, [$1], 1;")
    return gl.inline_asm_elementwise(assembly, "=&r,l", [pointer], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def reset_after(pointer, ticket, last):
    gl.inline_asm_elementwise("{ .reg .pred p; setp.eq.s32 p, $2, $3; @p st.global.u32 [$1], 0; @p st.global.u32 [$1+4], 0; mov.u32 $0, 0; }",
                              "=r,l,r,r", [pointer, ticket, last], dtype=gl.int32, is_pure=False, pack=1)


# ---- tiles in registers

@gluon.jit
def mma_zeros(m: constexpr, n: constexpr, dtype: constexpr):
    return gl.full([m, n], 0.0, gl.float32, _mma_layout(m, n, dtype, gl.num_warps()))


@gluon.jit
def full_rows(tile, value):
    return gl.full([tile.shape[0]], value, gl.float32, gl.SliceLayout(1, tile.type.layout))


@gluon.jit
def full_cols(tile, value):
    return gl.full([tile.shape[1]], value, gl.float32, gl.SliceLayout(0, tile.type.layout))


@gluon.jit
def rows(tile):
    return gl.arange(0, tile.shape[0], gl.SliceLayout(1, tile.type.layout))


@gluon.jit
def cols(tile):
    return gl.arange(0, tile.shape[1], gl.SliceLayout(0, tile.type.layout))


@gluon.jit
def tile_index(m: constexpr, n: constexpr, vec: constexpr):
    layout: constexpr = _coalesced_layout(n, vec, gl.num_warps())
    return gl.arange(0, m, gl.SliceLayout(1, layout)), gl.arange(0, n, gl.SliceLayout(0, layout))


@gluon.jit
def tile_zeros(m: constexpr, n: constexpr, vec: constexpr):
    return gl.zeros([m, n], gl.float32, _coalesced_layout(n, vec, gl.num_warps()))


@gluon.jit
def vec_index(n: constexpr):
    return gl.arange(0, n, _vector_layout(1, gl.num_warps()))


@gluon.jit
def like_rows(vector, tile):
    return gl.convert_layout(vector, gl.SliceLayout(1, tile.type.layout), assert_trivial=True)


@gluon.jit
def like_cols(vector, tile):
    return gl.convert_layout(vector, gl.SliceLayout(0, tile.type.layout), assert_trivial=True)


@gluon.jit
def move_rows(vector, tile):
    return gl.convert_layout(vector, gl.SliceLayout(1, tile.type.layout))


@gluon.jit
def move_cols(vector, tile):
    return gl.convert_layout(vector, gl.SliceLayout(0, tile.type.layout))


@gluon.jit
def register_operand(tile, acc):
    layout: constexpr = gl.DotOperandLayout(0, acc.type.layout, 32 // tile.dtype.primitive_bitwidth)
    return gl.convert_layout(tile, layout, assert_trivial=True)


@gluon.jit
def trans(tile):
    return tile.permute((1, 0))


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def cumsum(vector):
    return gl.associative_scan(vector, 0, _add)


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
def smem_load_rows(buffer, tile):
    return buffer.mem.load(gl.SliceLayout(1, tile.type.layout))


@gluon.jit
def smem_load_cols(buffer, tile):
    return buffer.mem.load(gl.SliceLayout(0, tile.type.layout))


# ---- barriers

@gluon.constexpr_function
def _init_barriers(n, count, warps):
    """Thread i of the role initialises barrier i."""
    rounds = " ".join(
        f"setp.lt.s32 p, t, {n - i}; @p mbarrier.init.shared::cta.b64 [a+{8 * i}], {count};" for i in range(0, n, 32 * warps)
    )
    return (f"{{ .reg .pred p; .reg .b32 t, a; mov.u32 t, %tid.x; and.b32 t, t, {32 * warps - 1}; mad.lo.u32 a, t, 8, $1; {rounds} "
            "fence.mbarrier_init.release.cluster; mov.u32 $0, 0; }")


@gluon.jit
def alloc_barriers(n: constexpr, arrive_count: constexpr = 1, init: constexpr = PENDING, expect_bytes: constexpr = 0):
    mem = gl.allocate_shared_memory(gl.int64, [n, 1], mbarrier.MBarrierLayout())
    # a copy's own arrival counts once, a role's arrival ARRIVALS times: its warps share them
    count: constexpr = arrive_count if expect_bytes else arrive_count * _ARRIVALS
    # Gluon's own init puts a barrier of the role between any two, 35 ns each on an H200
    gl.inline_asm_elementwise(_init_barriers(n, count, gl.num_warps()), "=r,r", [_address(mem)], dtype=gl.int32, is_pure=False, pack=1)
    role_sync()
    return Barriers(mem, init, expect_bytes)


@gluon.jit
def barrier_wait(barrier, use):
    mbarrier.wait(barrier.mem, (use & 1) ^ barrier.ready)


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


# ---- the compile hook: shared-memory addresses, and clusters of CTAs compiled one program per CTA
# Assembly that needs the hook starts with this word, which ptxas refuses and only the hook removes.
_HOOK = "tle_attn_compile_hook_1"
_ADDRESS_WIDTH = 64 if triton.__version__.startswith("3.6.") else 32  # of the compiler's operation that gives the address of a buffer
_ADDRESS = re.compile(
    r"(?P<result>%[\w#]+) = ttg\.local_load (?P<buffer>%[\w#]+) \{[^}]*" + _HOOK
    + r"[^}]*\} : (?P<buffer_type>!ttg\.memdesc<.*?>) -> (?P<type>tensor<.*?>)(?: loc\(.*\))?$",
    re.MULTILINE)
_ALLOCATION = re.compile(r"^    (?P<buffer>%[\w#]+) = ttg\.local_alloc .*?: \(\) -> (?P<type>!ttg\.memdesc<.*?>)(?: loc\(.*\))?$", re.MULTILINE)


def _hook_ttgir(module):
    """Turn the marked loads into addresses, and return (module, number of cluster barriers).

    The compiler does not see accesses through an address, of this CTA or a peer, so every buffer stays allocated to the kernel's end.
    """
    text = str(module)
    if _HOOK not in text:
        return module, 0
    lines = text.splitlines()
    barriers = [i for i, line in enumerate(lines) if f"{_HOOK} cluster_barrier" in line]
    roles = [i for i, line in enumerate(lines) if "ttg.warp_specialize(" in line]
    if roles and any(i > roles[0] or not re.match(r"    %\w", lines[i]) for i in barriers):
        raise ValueError("cluster_barrier() in a warp-specialised kernel: allowed only before warp_specialize() and outside of branches and loops, because the "
                         "warps of all roles have to take part; between roles use cluster_push and cluster_push_wait")

    def address(load):
        name = load["result"] + "_address"
        return (f"{name} = tti.experimental_memdesc_to_i{_ADDRESS_WIDTH} {load['buffer']} : {load['buffer_type']}\n"
                f"    {load['result']} = tt.splat {name} : i{_ADDRESS_WIDTH} -> {load['type']}")

    if any(_ADDRESS.finditer(text)):
        keep = "".join(f"    ttg.local_dealloc {a['buffer']} : {a['type']}\n" for a in _ALLOCATION.finditer(text))
        text = _ADDRESS.sub(address, text)
        end = text.rindex("    tt.return")  # an earlier return comes before the allocations
        text = text[:end] + keep + text[end:]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "module.ttgir")
        with open(path, "w") as file:
            file.write(text)
        rewritten = ir.parse_mlir_module(path, module.context)
    rewritten.context = module.context
    return rewritten, len(barriers)


def _hook_ptx(text, metadata, barriers, role_0_warps):
    """Remove the marker words; set the cluster size; let the warps of the other roles take part in cluster barriers before warp_specialize()."""
    cluster = re.search(_HOOK + r" cluster_dims (\d+);", text)
    if cluster:
        metadata["num_ctas"] = int(cluster[1])
        text = re.sub(r"(\.reqntid [^\n]*\n)", rf"\1.explicitcluster\n.reqnctapercluster {cluster[1]}, 1, 1\n", text, count=1)
    if barriers and metadata["num_warps"] > role_0_warps:
        start = text.index("\n", text.index("// %bb.0:", text.index(".entry"))) + 1
        join = "@other barrier.cluster.arrive.relaxed; @other barrier.cluster.wait; " * barriers
        others = f"{{ .reg .pred other; .reg .b32 thread; mov.u32 thread, %tid.x; setp.ge.u32 other, thread, {32 * role_0_warps}; {join}}}\n"
        text = text[:start] + others + text[start:]
    registers = ""  # of the whole function
    if f"{_HOOK} flag;" in text:  # assembly blocks hand a per-thread answer on
        registers += "\n\t.reg .b32 tle_attn_flag;"
    if f"{_HOOK} policy;" in text:
        registers += "\n\t.reg .b64 tle_attn_policy;\n\t.reg .pred tle_attn_evict;"
        # a load with evict_normal is not the same as one without a hint: it kept 48 MB out of an H200's 60 MB L2
        load = r"@(%p\d+) (cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global\S*mbarrier::complete_tx::bytes)( [^;]*);"
        both = r"{ .reg .pred hint, none; and.pred hint, \1, tle_attn_evict; xor.pred none, \1, hint; @hint \2.L2::cache_hint\3, tle_attn_policy; @none \2\3; }"
        text = re.sub(load, both, text)
    if registers:
        start = text.index("{", text.index(".entry")) + 1
        text = text[:start] + registers + text[start:]
    return re.sub(_HOOK + r" \w+(?: \d+)?;", "", text)


def _install_compile_hook():
    """Run the two rewrites in every compile of this process, behind a hook that is there already; they leave other kernels as they are."""
    earlier = knobs.runtime.add_stages_inspection_hook
    if getattr(earlier, "name", None) == _HOOK:
        return _HOOK

    def hook(*arguments):
        if not arguments:  # Triton 3.7 and later: the hook's part of the cache key
            return tuple(part + _HOOK for part in (earlier() if earlier else ("", "")))
        _, stages, options = arguments[:3]
        if earlier:
            earlier(*arguments)
        if "ptx" in stages:
            make_ttgir, make_ptx, barriers = stages["ttgir"], stages["ptx"], []

            def ttgir(module, metadata):
                module, count = _hook_ttgir(make_ttgir(module, metadata))
                barriers.append(count)
                return module

            stages["ttgir"] = ttgir
            stages["ptx"] = lambda module, metadata: _hook_ptx(make_ptx(module, metadata), metadata, sum(barriers), options.num_warps)
        return None

    hook.name, hook.tle_attn_earlier = _HOOK, earlier
    knobs.runtime.add_stages_inspection_hook = hook
    return _HOOK


_INSTALLED_HOOK = _install_compile_hook()


@builtin
def _marked_load(mem, layout, _semantic=None):
    """A one-element load of `mem`, marked for the compile hook."""
    layout, width = gl._unwrap_if_constexpr(layout), _ADDRESS_WIDTH
    rank = mem.layout.rank if isinstance(mem.layout, gl.NVMMASharedLayout) else len(mem.layout.order)
    if len(mem.shape) > rank:  # of slots: the first one's
        mem = _semantic.memdesc_index(mem, 0)
    bits = mem.dtype.primitive_bitwidth * mem.numel
    if bits % 128 and mem.dtype != gl.int64:
        raise ValueError(f"{mem.dtype}{mem.shape}: a buffer or slot that compact or another CTA accesses needs a multiple of 16 bytes, as its address is one")
    count = max(1, bits // width)
    kind = gl.shared_memory_descriptor_type(gl.int64 if width == 64 else gl.int32, [count], gl.SwizzledSharedLayout(1, 1, 1, [0]), [count])
    flat = gl.shared_memory_descriptor(_semantic.builder.create_memdesc_reinterpret(kind.to_ir(_semantic.builder), mem.handle), **kind.__dict__)
    value = _semantic.shared_load(_semantic.memdesc_slice(flat, 0, 1, 0) if count > 1 else flat, layout)
    value.handle.set_attr(_INSTALLED_HOOK, _semantic.builder.get_int32_attr(1))
    return value


@gluon.constexpr_function
def _hooked(call, assembly):
    return f"{_INSTALLED_HOOK} {call}; {assembly}"


@gluon.jit
def _address(mem):
    """Shared-memory address of `mem` in this CTA, bytes."""
    marked = _marked_load(mem, _vector_layout(1, gl.num_warps()))
    return gl.max(gl.inline_asm_elementwise(_hooked("address", "mov.b32 $0, $1;"), "=r,r", [marked.to(gl.int32)], dtype=gl.int32, is_pure=True, pack=1), 0)


@gluon.jit
def _barrier_address(barrier):
    return _address(barrier.array) + 8 * barrier.index


# ---- clusters

@gluon.constexpr_function
def _unique_threads(shape, vec, warps):
    """Threads of a role that hold different parts of a tile in its whole layout; the threads after them hold copies."""
    lanes = min(32, shape[-1] // vec)
    return min(32 * warps, shape[0] * lanes if len(shape) == 2 else shape[0] // vec)


@gluon.constexpr_function
def _remote_assembly(operation, vec, unique, warps):
    """One access of `vec` 32-bit elements in CTA `rank`. Operands: `vec` results, then `vec` each of addresses, ranks, values and barriers as there are any."""
    use = [f"${i}" for i in range(5 * vec)]
    result, address, rank = use[:vec], use[vec], use[2 * vec]
    values, barrier = ", ".join(use[3 * vec:4 * vec]), use[4 * vec]
    width = f".v{vec}" if vec > 1 else ""
    text = f"{{ .reg .b32 at, bar, thread; .reg .pred own; mapa.shared::cluster.u32 at, {address}, {rank}; "
    if operation == "load":
        return text + f"ld.shared::cluster{width}.b32 {{{', '.join(result)}}}, [at]; }}"
    guard = ""
    if unique < 32 * warps:
        guard = "@own "
        text += f"mov.u32 thread, %tid.x; and.b32 thread, thread, {32 * warps - 1}; setp.lt.u32 own, thread, {unique}; "
    if operation == "store":
        text += f"{guard}st.shared::cluster{width}.b32 [at], {{{values}}}; "
    else:
        text += (f"mapa.shared::cluster.u32 bar, {barrier}, {rank}; "
                 f"{guard}st.async.shared::cluster.mbarrier::complete_tx::bytes{width}.b32 [at], {{{values}}}, [bar]; ")
    return text + " ".join(f"mov.u32 {r}, 0;" for r in result) + " }"


@gluon.constexpr_function
def _operands(results, inputs, vec):
    return ",".join([results] * vec + ["r"] * (inputs * vec))


@gluon.jit
def cluster_dims(n: constexpr):
    gl.inline_asm_elementwise(_hooked(f"cluster_dims {n}", "mov.u32 $0, 0;"), "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def cluster_rank():
    return gl.inline_asm_elementwise("mov.u32 $0, %cluster_ctarank;", "=r", [], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def cluster_barrier():
    assembly: constexpr = _hooked("cluster_barrier", "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 $0, 0;")
    gl.inline_asm_elementwise(assembly, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _element_addresses(buffer, layout: constexpr):
    """Shared-memory address of every 32-bit element of a plain buffer."""
    gl.static_assert(buffer.mem.dtype.primitive_bitwidth == 32, "clusters exchange 32-bit elements")
    shape: constexpr = buffer.mem.shape
    if len(shape) == 1:
        index = gl.arange(0, shape[0], layout)
    else:
        index = gl.arange(0, shape[0], gl.SliceLayout(1, layout))[:, None] * shape[1] + gl.arange(0, shape[1], gl.SliceLayout(0, layout))[None, :]
    return _address(buffer.mem) + 4 * index


@gluon.jit
def _remote_write(operation: constexpr, buffer, rank, tile, barrier_address):
    shape: constexpr = buffer.mem.shape
    vec: constexpr = min(4, shape[-1])
    layout: constexpr = _whole_layout(shape, vec, gl.num_warps())
    value = gl.convert_layout(tile.to(buffer.mem.dtype), layout).to(gl.int32, bitcast=True)
    assembly: constexpr = _remote_assembly(operation, vec, _unique_threads(shape, vec, gl.num_warps()), gl.num_warps())
    arguments = [_element_addresses(buffer, layout), rank, value, barrier_address]
    gl.inline_asm_elementwise(assembly, _operands("=r", 4, vec), arguments, dtype=gl.int32, is_pure=False, pack=vec)


@gluon.jit
def remote_store(buffer, rank, tile):
    _remote_write("store", buffer, rank, tile, 0)


@gluon.jit
def remote_load(buffer, rank):
    vec: constexpr = min(4, buffer.mem.shape[-1])
    layout: constexpr = _whole_layout(buffer.mem.shape, vec, gl.num_warps())
    assembly: constexpr = _remote_assembly("load", vec, 0, gl.num_warps())
    bits = gl.inline_asm_elementwise(assembly, _operands("=r", 2, vec), [_element_addresses(buffer, layout), rank], dtype=gl.int32, is_pure=False, pack=vec)
    return bits.to(buffer.mem.dtype, bitcast=True)


@gluon.jit
def cluster_push(buffer, rank, tile, barrier):
    _remote_write("push", buffer, rank, tile, _barrier_address(barrier))


@gluon.jit
def cluster_push_wait(barrier, use, nbytes):
    # The bytes are announced by one thread before its warp's arrival: the use cannot complete without them.
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; and.b32 t, t, $3; setp.eq.u32 p, t, 0; "
        "@p mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$1], $2; mov.u32 $0, 0; }",
        "=r,r,r,r", [_barrier_address(barrier), nbytes, 32 * gl.num_warps() - 1], dtype=gl.int32, is_pure=False, pack=1)
    barrier_arrive(barrier)
    gl.inline_asm_elementwise(
        "{ .reg .pred done; wait_${:uid}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$1], $2; @!done bra wait_${:uid}; mov.u32 $0, 0; }",
        "=r,r,r", [_barrier_address(barrier), (use & 1) ^ barrier.ready], dtype=gl.int32, is_pure=False, pack=1)


# ---- warp votes

@gluon.constexpr_function
def _compact_assembly(groups):
    """Operands: `groups` results, then `groups` each of keep flags, values, buffer addresses and starts; a group is one element of each lane."""
    text = f"{{ .reg .pred p; .reg .b32 below, votes, at, count; mov.u32 below, %lanemask_lt; mov.u32 count, ${4 * groups}; "
    for g in range(groups):
        text += (f"setp.ne.s32 p, ${groups + g}, 0; vote.sync.ballot.b32 votes, p, 0xffffffff; "
                 f"and.b32 at, votes, below; popc.b32 at, at; add.u32 at, at, count; mad.lo.u32 at, at, 4, ${3 * groups}; "
                 f"@p st.shared.b32 [at], ${2 * groups + g}; popc.b32 votes, votes; add.u32 count, count, votes; ")
    return text + "bar.warp.sync 0xffffffff; " + " ".join(f"mov.u32 ${g}, count;" for g in range(groups)) + " }"


@gluon.jit
def compact(keep, values, buffer, start):
    gl.static_assert(gl.num_warps() == 1, "compact: only in a role of one warp")
    gl.static_assert(keep.shape[0] % 32 == 0, "compact: vectors of a multiple of 32 elements")
    groups: constexpr = keep.shape[0] // 32
    counts = gl.inline_asm_elementwise(_compact_assembly(groups), _operands("=&r", 4, groups), [keep, values, _address(buffer.mem), start],
                                       dtype=gl.int32, is_pure=False, pack=groups)
    return gl.max(counts, 0)
