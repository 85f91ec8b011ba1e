"""The dialect: the small kernel language that block text is written in.

One row per operation.  `docs/dialect.md` is generated from this table, and the tests check that the preludes
`gluon/`, `tle.py` and `cpu.py` define every operation with exactly this signature.
"""

from attrs import frozen


@frozen
class Op:
    """One operation of the dialect."""

    name: str
    signature: str  #: as written in block text
    group: str
    meaning: str
    gluon: str  #: how stock Triton's Gluon does it
    tle: str  #: how FlagTree's TLE does it
    cpu: str  #: what the emulation models and checks


_ALIAS = "same name"

OPS: tuple[Op, ...] = (
    # ---- programs
    Op("program_id", "program_id(axis)", "program", "index of this CTA in the grid", "gl.program_id", "tl.program_id", "checked 32-bit scalar"),
    Op("num_programs", "num_programs(axis)", "program", "CTAs of the grid along an axis (persistent loops)", "gl.num_programs", "tl.num_programs", "checked 32-bit scalar"),
    Op("static_range", "static_range(n)", "program", "unrolled loop; the index is a constant", "gl.static_range", "tl.static_range", "range"),
    Op("warp_specialize", "warp_specialize(functions_and_args, worker_num_warps, worker_num_regs)", "program",
       "run entry 0 on the kernel's own warps and every other (function, args) on its own warps; workers may not receive tiles",
       "gl.warp_specialize", "tle.gpu.warp_specialize", "one coroutine per role; happens-before from the parent and back at the join"),
    Op("grid_wait", "grid_wait()", "program", "programmatic dependent launch: wait until the previous kernel's writes are visible", "gdc_wait", "gdc_wait", "recorded; must be reached before a dependent read"),
    Op("grid_launch_dependents", "grid_launch_dependents()", "program", "programmatic dependent launch: let the next kernel start", "gdc_launch_dependents", "gdc_launch_dependents", "recorded"),
    # ---- global memory
    Op("load", "load(pointer, mask=None, other=None, cache_modifier='')", "global", "read; masked-off elements give `other`; cache_modifier='.cg' for data that other CTAs wrote", "gl.load", "tl.load",
       "bounds per element; unwritten workspace; happens-before for data that CTAs wrote"),
    Op("store", "store(pointer, value, mask=None)", "global", "write, converted to the pointer's type", "gl.store", "tl.store", "bounds per element; write-write races between CTAs"),
    Op("atomic_add", "atomic_add(pointer, value, sem='acq_rel')", "global", "scalar add at GPU scope, returns the old value. Orders the memory of this role's threads as `sem` says ('relaxed', 'acquire', 'release', 'acq_rel')", "gl.atomic_add", "tl.atomic_add", "joins clocks per address as `sem` says"),
    Op("load_acquire", "load_acquire(pointer)", "global", "scalar int32 read with acquire at GPU scope (polling)", "ld.acquire.gpu by assembly", "the same assembly", "blocks the role while nothing changes, so that a poll that can never succeed is a reported deadlock"),
    Op("arrive_release", "arrive_release(pointer)", "global", "add 1 to an int32 counter and go on; publishes this role's earlier writes (fire and forget)", "role_sync, red.release.gpu by one thread", "atomic_add with release", "release on the address"),
    Op("wait_at_least", "wait_at_least(pointer, value)", "global", "wait until an int32 counter has reached `value`; what its arrivals published is visible then", "ld.acquire.gpu by one thread, role_sync", "the same load in a loop, its value handed to all by a reduction", "acquire; a wait that can never end is a reported deadlock"),
    Op("take_ticket", "take_ticket(pointer)", "global", "add 1 to an int32 counter, relaxed; the old value, known to one thread, is only for reset_after", "atom.relaxed.gpu.inc by one thread", "atomic_add", "atomic"),
    Op("reset_after", "reset_after(pointer, ticket, last)", "global", "zero the int32 counters pointer[0] and pointer[1] if `ticket` is `last`: whoever held an earlier ticket is done with them", "st.global by that thread", "tl.store", "needs the ticket to be the last one"),
    Op("as_int64", "as_int64(x)", "global", "widen an index before a product that can pass 2**31", "x.to(gl.int64)", "x.to(tl.int64)", "64-bit value, no 32-bit check"),
    # ---- tiles in registers
    Op("mma_zeros", "mma_zeros(m, n, dtype)", "tile", "fp32 zeros [m, n] laid out as the accumulator of a wgmma whose operands are `dtype`", "zeros in NVMMADistributedLayout", "tl.zeros", "array"),
    Op("full_rows", "full_rows(tile, value)", "tile", "fp32 vector, one element per row of `tile`", "gl.full in the tile's slice layout", "tl.full", "array"),
    Op("full_cols", "full_cols(tile, value)", "tile", "fp32 vector, one element per column of `tile`", "gl.full in the tile's slice layout", "tl.full", "array"),
    Op("rows", "rows(tile)", "tile", "int32 row indices of `tile` (vector)", "gl.arange in the tile's slice layout", "tl.arange", "array"),
    Op("cols", "cols(tile)", "tile", "int32 column indices of `tile` (vector)", "gl.arange in the tile's slice layout", "tl.arange", "array"),
    Op("cols_from", "cols_from(tile, start)", "tile", "start + cols(tile) for an int32 scalar: a few registers and an addition a column, where `cols` in a loop is a register a column; columns a multiple of 8", "the index in two parts, one of which is constants", "start + tl.arange", "array"),
    Op("distances", "distances(tile, start)", "tile", "fp32 tile of start + row - column for an int32 scalar, exact below 2**24: an addition an element; columns a multiple of 8", "the index in two parts, one of which is constants", "from two tl.arange", "array"),
    Op("tile_index", "tile_index(m, n, vec)", "tile", "row and column index vectors of an [m, n] tile read or written `vec` neighbouring columns a thread", "two gl.arange in a coalesced BlockedLayout", "two tl.arange", "arrays"),
    Op("tile_zeros", "tile_zeros(m, n, vec)", "tile", "fp32 zeros [m, n] laid out as the tile of tile_index(m, n, vec)", "gl.zeros in a coalesced BlockedLayout", "tl.zeros", "array"),
    Op("vec_index", "vec_index(n)", "tile", "int32 vector 0 .. n-1 spread over the role's threads", "gl.arange in a 1-D BlockedLayout", "tl.arange", "array"),
    Op("like_rows", "like_rows(vector, tile)", "tile", "re-label a per-row vector to the rows of `tile`; free, a compile error when it would not be", "convert_layout(assert_trivial=True)", "identity", "length check"),
    Op("like_cols", "like_cols(vector, tile)", "tile", "the same for columns", "convert_layout(assert_trivial=True)", "identity", "length check"),
    Op("move_rows", "move_rows(vector, tile)", "tile", "the same with a real exchange through shared memory or shuffles where layouts differ", "convert_layout", "identity", "length check"),
    Op("move_cols", "move_cols(vector, tile)", "tile", "the same for columns", "convert_layout", "identity", "length check"),
    Op("register_operand", "register_operand(tile, acc)", "tile", "use a register tile as the A operand of a wgmma that accumulates into `acc`; free, a compile error when it would not be", "DotOperandLayout, assert_trivial", "identity", "identity"),
    Op("uniform", "uniform(x)", "tile", "an int32 that has one value in all threads of the role, as read from shared memory: what is computed from it, loops included, needs no vector registers", "redux.sync by assembly, whose result is a uniform register", "nothing", "nothing"),
    Op("pin", "pin(vector)", "tile", "the vector, an fp32 one of values >= 0 such as row sums, computed before any wait that follows: without it the compiler may move arithmetic behind a wgmma_wait that it was to overlap with", "a store by assembly that never happens", "nothing", "nothing"),
    Op("wide_rows", "wide_rows(tile)", "tile", "an accumulator of 64 rows with 4 neighbouring columns in a thread, for wide stores; an exchange between neighbouring lanes", "convert_layout", "identity", "identity"),
    Op("trans", "trans(tile)", "tile", "transpose of a register tile", "permute((1, 0))", "tl.trans", "view"),
    Op("where", "where(condition, x, y)", "tile", "elementwise choice", "gl.where", "tl.where", "numpy"),
    Op("where_le", "where_le(a, b, x, y)", "tile", "x where a <= b (int32, broadcast to x), the constant y elsewhere; for masks of fp32 tiles: `where` makes a tile of conditions, which costs registers and twice the instructions on large tiles", "setp and selp by assembly", "tl.where", "numpy"),
    Op("maximum", "maximum(x, y)", "tile", "elementwise maximum (tiles and scalars)", "gl.maximum", "tl.maximum", "numpy"),
    Op("minimum", "minimum(x, y)", "tile", "elementwise minimum (tiles and scalars)", "gl.minimum", "tl.minimum", "numpy"),
    Op("absolute", "absolute(x)", "tile", "elementwise magnitude, which costs nothing beside an fp32 operation", "gl.abs", "tl.abs", "numpy"),
    Op("exp2", "exp2(x)", "tile", "2**x in fp32 (ex2.approx)", "gl.exp2", "tl.exp2", "numpy exp2 rounded to fp32"),
    Op("log2", "log2(x)", "tile", "base-2 logarithm in fp32", "gl.log2", "tl.log2", "numpy"),
    Op("lg2", "lg2(x)", "tile", "base-2 logarithm in one instruction (lg2.approx): off by 2**-22 near 1, by 2**-22 of the result elsewhere; of subnormals as of 0", "assembly", "tl.log2", "numpy"),
    Op("fdiv", "fdiv(x, y)", "tile", "fp32 division", "gl.fdiv", "x / y", "numpy"),
    Op("rcp", "rcp(x)", "tile", "1 / x of fp32 x >= 2**-126, infinity included, in one instruction (rcp.approx: off by a unit in the last place)", "assembly", "1.0 / x", "numpy; smaller x is an error"),
    Op("cdiv", "cdiv(x, y)", "tile", "integer division rounded up, for x >= 0", "gl.cdiv", "tl.cdiv", "32-bit check"),
    Op("reduce_max", "reduce_max(tile, axis)", "tile", "maximum along an axis (axis 0 of a vector gives a scalar)", "gl.max", "tl.max", "numpy"),
    Op("reduce_sum", "reduce_sum(tile, axis)", "tile", "sum along an axis (axis 0 of a vector gives a scalar)", "gl.sum", "tl.sum", "numpy, in the element type"),
    Op("cumsum", "cumsum(vector)", "tile", "inclusive prefix sum of an int32 vector", "gl.associative_scan", "tl.cumsum", "numpy"),
    # ---- shared memory
    Op("alloc", "alloc(shape, dtype)", "shared", "wgmma/TMA tile [rows, cols] or ring of tiles [n, rows, cols], swizzled (128-byte column blocks, each rows x 128 B)", "NVMMASharedLayout", "tle.gpu.alloc", "poisoned; ordering per slot"),
    Op("alloc_plain", "alloc_plain(shape, dtype)", "shared", "row-major buffer without swizzle, for lists and exchanges: a vector, a tile, or a ring of either; slot(i) of an [n, m] buffer is vector i. What is written by compact or between CTAs needs slots of a multiple of 16 bytes", "SwizzledSharedLayout(1, 1, 1)", "tle.gpu.alloc(nv_mma_shared_layout=False)", "poisoned; ordering per buffer"),
    Op("alias", "alias(buffer, shape)", "shared", "the bytes of `buffer` seen as a ring [n, rows, cols] of smaller tiles; only before the first access", "_reinterpret", "tle.gpu.alloc(alias=)", "same bytes; ordering per smallest slot"),
    Op("smem_store", "smem_store(buffer, tile)", "shared", "write a whole buffer or slot from registers (generic proxy)", "memdesc.store", "tl.store(local_ptr)", "needs order against earlier reads and writes; marks the bytes as needing fence_async"),
    Op("smem_load", "smem_load(buffer)", "shared", "read a whole buffer or slot into a coalesced register tile; a vector into one laid out as vec_index", "memdesc.load(BlockedLayout)", "tl.load(local_ptr)", "needs order after the write; unwritten bytes are an error; before TMA overwrites what was read, the reader settles the read: fence_async, role_sync, or wgmma_wait of a later wgmma"),
    Op("zero_rows", "zero_rows(buffer, start)", "shared", "zero the rows of a wgmma/TMA tile from `start` on, whatever they hold (generic proxy)", "memdesc.load, where, store of its 32-bit words", "tl.load(local_ptr), where, tl.store", "as smem_load and smem_store"),
    Op("smem_load_rows", "smem_load_rows(buffer, tile)", "shared", "read a plain vector, one element per row of `tile`", "memdesc.load(slice layout)", "tl.load(local_ptr)", "as smem_load"),
    Op("smem_load_cols", "smem_load_cols(buffer, tile)", "shared", "read a plain vector, one element per column of `tile`", "memdesc.load(slice layout)", "tl.load(local_ptr)", "as smem_load"),
    Op("smem_operand", "smem_operand(buffer, acc)", "shared", "read a wgmma tile as the A operand in registers of a wgmma that accumulates into `acc`", "memdesc.load(DotOperandLayout)", "tl.load(local_ptr)", "as smem_load"),
    Op("fence_async", "fence_async()", "shared", "make this role's generic shared-memory writes visible to TMA and wgmma; its reads have their data", "fence_async_shared", "the same instruction by assembly, and debug_barrier", "a wgmma or TMA read of unfenced bytes is an error; settles reads"),
    Op("role_sync", "role_sync()", "shared", "barrier of the threads of this role", "gl.thread_barrier", "tl.debug_barrier", "settles reads (roles run as one)"),
    # ---- barriers
    Op("alloc_barriers", "alloc_barriers(n, arrive_count=1, init=PENDING, expect_bytes=0, more=False)", "barrier",
       "n mbarriers; expect_bytes > 0: copies of that many bytes each complete a use, arrive_count of them; more: another alloc_barriers follows, and the last one publishes the set-up of all (each time costs 0.1 us)",
       "mbarrier.init", "tle.gpu.alloc_barriers", "counts, bytes, uses and clocks per slot; no use before the set-up is published"),
    Op("barrier_wait", "barrier_wait(barrier, use)", "barrier", "wait for logical use `use` of this slot (READY: use 0 passes at once, use n waits for completion n-1)", "mbarrier.wait of the parity", "tle.gpu.barrier_wait", "the parity and the logical use are both checked"),
    Op("barrier_arrive", "barrier_arrive(barrier)", "barrier", "one arrival of this role (release); does not wait for its generic reads of shared memory", "mbarrier.arrive", "tle.gpu.barrier_arrive", "too many arrivals are an error"),
    Op("alloc_named", "alloc_named(first_id, n, threads)", "barrier", "n named barriers for `threads` arriving plus waiting threads; indexed by constants only", "ids first_id ..", "tle.gpu.alloc_barriers (ids are the compiler's)", "counts threads"),
    Op("named_wait", "named_wait(barrier)", "barrier", "bar.sync: arrive and wait until all threads are there", "assembly", "tle.gpu.barrier_wait without phase", "threads counted; deadlock reported"),
    Op("named_wait_for", "named_wait_for(barrier, vector)", "barrier", "named_wait, and the fp32 vector (one element per row of a wgmma accumulator of 64 rows): what is computed from the result is computed after the wait", "assembly; the result depends on a clock read behind the barrier", "as named_wait", "as named_wait"),
    Op("named_arrive", "named_arrive(barrier)", "barrier", "bar.arrive: arrive and go on", "assembly", "tle.gpu.barrier_arrive without phase", "threads counted"),
    # ---- TMA
    Op("copy", "copy(descriptor, buffer, shape, offsets, barrier)", "tma", "asynchronous box load; completes `barrier`'s use by its bytes; coordinates out of range give zeros and still count", "expect + TMA load", "tle.gpu.copy(barrier=)", "delivered in pieces at any time; one copy per slot and use"),
    Op("evict_first", "evict_first(yes)", "tma", "from here on this role's copies leave the L2 cache first if `yes` is not 0 (a hint)", "cache policy of the TMA loads, set by the compile hook", "nothing", "nothing"),
    Op("tma_store", "tma_store(descriptor, buffer, shape, offsets)", "tma", "asynchronous box store; out-of-range parts are clipped", "TMA store", "tle.gpu.copy (synchronous)", "reads the buffer until tma_store_wait; needs fence_async"),
    Op("tma_store_wait", "tma_store_wait()", "tma", "all of this role's TMA stores have read their buffers and are visible", "store_wait(0)", "nothing", "retires the reads"),
    # ---- wgmma
    Op("wgmma", "wgmma(a, b, acc=None, trans_a=False, trans_b=False)", "wgmma", "asynchronous fp32 acc + a @ b; a from shared memory or registers, b from shared memory; no acc = zeros. fp8 operands in shared memory must be K-contiguous", "warpgroup_mma(is_async=True)", "tle.gpu.wgmma", "shapes, types, ordering of the operands; the result is unusable before the wait"),
    Op("wgmma_wait", "wgmma_wait(pendings, acc)", "wgmma", "at most `pendings` younger groups still run; returns `acc` usable (a tuple gives a tuple)", "warpgroup_mma_wait", "tle.gpu.wgmma_wait", "retires groups in order"),
    # ---- clusters
    Op("cluster_dims", "cluster_dims(n)", "cluster", "first statement of a kernel that runs as clusters of n CTAs; the grid then counts clusters, program_id counts CTAs", "marker for the compile hook", "the mesh constant", "n CTAs share a scheduler"),
    Op("cluster_rank", "cluster_rank()", "cluster", "rank of this CTA in its cluster", "%cluster_ctarank", "%cluster_ctarank", "scalar"),
    Op("cluster_barrier", "cluster_barrier()", "cluster", "all threads of all CTAs of the cluster; release and acquire of shared memory. In a warp-specialised kernel one, before warp_specialize", "barrier.cluster", "tle.distributed_barrier", "joins clocks; missing peers are a deadlock"),
    Op("remote_store", "remote_store(buffer, rank, tile)", "cluster", "write `tile` into the same plain buffer of CTA `rank`; visible after cluster_barrier", "mapa + st.shared::cluster", "tl.store(local_ptr(tle.remote))", "peer alive and set up; ordering"),
    Op("remote_load", "remote_load(buffer, rank)", "cluster", "read the same plain 2-D buffer of CTA `rank` into a coalesced tile", "mapa + ld.shared::cluster", "tl.load(local_ptr(tle.remote))", "peer alive and set up; ordering; unwritten bytes"),
    Op("remote_load_rows", "remote_load_rows(buffer, rank, tile, first)", "cluster", "read rows first, first + 1, ... of the same plain buffer of CTA `rank`, as many as `tile` has: of a [rows, cols] buffer into a coalesced tile, of a vector one element per row of `tile`", "mapa + ld.shared::cluster", "tl.load(local_ptr(tle.remote, indices))", "as remote_load, for the rows that are read"),
    Op("cluster_push", "cluster_push(buffer, rank, tile, barrier)", "cluster", "asynchronous remote store that completes bytes on CTA `rank`'s copy of `barrier`", "mapa + st.async", "remote store", "delivered at any time; the peer must still be alive"),
    Op("cluster_deal", "cluster_deal(buffer, tile, share, barrier)", "cluster", "cluster_push of `share` rows of `tile` to each CTA: row i goes to CTA i // share, into row i % n of its copy of the plain `buffer` of n rows, n a multiple of share (tile and buffer may both be vectors)", "mapa + st.async", "remote stores with masks", "as cluster_push, for the rows of each CTA"),
    Op("cluster_push_wait", "cluster_push_wait(barrier, use, nbytes)", "cluster", "every CTA of the cluster calls it once per exchange: nbytes pushed into this CTA have landed (0: receives nothing); another exchange over the same barrier needs a cluster_barrier between", "expect + mbarrier wait", "tle.distributed_barrier", "expected bytes are checked"),
    Op("cluster_arrive", "cluster_arrive(barrier, n)", "cluster", "one arrival of this role at the copy of `barrier` of each of the CTAs 0 .. n - 1: what this role has written before, in shared memory too, is visible there after cluster_wait, and its reads are done. For exchanges between roles, which cluster_barrier cannot order", "mapa + mbarrier.arrive.release.cluster", "nothing: cluster_wait is a barrier of all", "peer alive and set up; a CTA that may exit before it is an error"),
    Op("cluster_wait", "cluster_wait(barrier, use)", "cluster", "barrier_wait for arrivals of other CTAs", "mbarrier.try_wait.acquire.cluster", "tle.distributed_barrier", "as barrier_wait, which is an error after an arrival of another CTA"),
    # ---- warp votes
    Op("compact", "compact(keep, values, buffer, start)", "vote", "append the int32 `values` whose `keep` (int32 0/1 vectors of a multiple of 32 elements) is set to the plain buffer from index `start` on, in order; returns the new count. One-warp roles only", "vote.ballot + popc + st.shared by assembly", "tl.cumsum + masked store through local_ptr", "order, bounds"),
)

DTYPES = ("BF16", "F16", "F32", "FP8", "I32", "I64", "U8")
MARKERS = ("jit", "constexpr", "PENDING", "READY")
NAMES = frozenset(op.name for op in OPS) | frozenset(DTYPES) | frozenset(MARKERS)
