"""Clusters, and warp votes."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

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
def remote_load_rows(buffer, rank, tile, first):
    shape: constexpr = buffer.mem.shape
    if len(shape) == 1:
        vec: constexpr = 1
        index = first + gl.arange(0, tile.shape[0], gl.SliceLayout(1, tile.type.layout))
    else:
        vec: constexpr = min(4, shape[1])
        layout: constexpr = _coalesced_layout(shape[1], vec, gl.num_warps())
        index = (first + gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout)))[:, None] * shape[1] + gl.arange(0, shape[1], gl.SliceLayout(0, layout))[None, :]
    assembly: constexpr = _remote_assembly("load", vec, 0, gl.num_warps())
    bits = gl.inline_asm_elementwise(assembly, _operands("=r", 2, vec), [_address(buffer.mem) + 4 * index, rank], dtype=gl.int32, is_pure=False, pack=vec)
    return bits.to(buffer.mem.dtype, bitcast=True)


@gluon.jit
def cluster_push(buffer, rank, tile, barrier):
    _remote_write("push", buffer, rank, tile, _barrier_address(barrier))


@gluon.jit
def cluster_deal(buffer, tile, share: constexpr, barrier):
    gl.static_assert(buffer.mem.dtype.primitive_bitwidth == 32, "clusters exchange 32-bit elements")
    shape: constexpr = tile.shape
    vec: constexpr = min(4, share if len(shape) == 1 else shape[-1])  # what one thread writes at once goes to one CTA
    layout: constexpr = _whole_layout(shape, vec, gl.num_warps())
    if len(shape) == 1:
        row = gl.arange(0, shape[0], layout)
        index = row % buffer.mem.shape[0]
    else:
        row = gl.arange(0, shape[0], gl.SliceLayout(1, layout))[:, None]
        index = row % buffer.mem.shape[0] * shape[1] + gl.arange(0, shape[1], gl.SliceLayout(0, layout))[None, :]
    value = gl.convert_layout(tile.to(buffer.mem.dtype), layout).to(gl.int32, bitcast=True)
    assembly: constexpr = _remote_assembly("push", vec, _unique_threads(shape, vec, gl.num_warps()), gl.num_warps())
    arguments = [_address(buffer.mem) + 4 * index, row // share, value, _barrier_address(barrier)]
    gl.inline_asm_elementwise(assembly, _operands("=r", 4, vec), arguments, dtype=gl.int32, is_pure=False, pack=vec)


@gluon.jit
def cluster_arrive(barrier, n):
    # every warp arrives for itself, as at a barrier of its own CTA; a lane for each CTA, because each release is a fence of all memory
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 at, lane; mov.u32 lane, %laneid; setp.lt.u32 p, lane, $2; mapa.shared::cluster.u32 at, $1, lane; bar.warp.sync 0xffffffff; "
        "@p mbarrier.arrive.release.cluster.shared::cluster.b64 _, [at], $3; mov.u32 $0, 0; }",
        "=r,r,r,r", [_barrier_address(barrier), n, _ARRIVALS // gl.num_warps()], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def cluster_wait(barrier, use):
    gl.inline_asm_elementwise(
        "{ .reg .pred done; wait_${:uid}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$1], $2; @!done bra wait_${:uid}; mov.u32 $0, 0; }",
        "=r,r,r", [_barrier_address(barrier), (use & 1) ^ barrier.ready], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def cluster_push_wait(barrier, use, nbytes):
    # The bytes are announced by one thread before its warp's arrival: the use cannot complete without them.
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; and.b32 t, t, $3; setp.eq.u32 p, t, 0; "
        "@p mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$1], $2; mov.u32 $0, 0; }",
        "=r,r,r,r", [_barrier_address(barrier), nbytes, 32 * gl.num_warps() - 1], dtype=gl.int32, is_pure=False, pack=1)
    barrier_arrive(barrier)
    cluster_wait(barrier, use)


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
