"""The dialect on the CPU emulation.  The linker copies only what a kernel uses."""

from tle_attn import emu

BF16 = emu.BF16
F16 = emu.F16
F32 = emu.F32
FP8 = emu.FP8
I32 = emu.I32
I64 = emu.I64
U8 = emu.U8
PENDING = emu.ops.PENDING
READY = emu.ops.READY
range = emu.ops.device_range
program_id = emu.ops.program_id
num_programs = emu.ops.num_programs
static_range = emu.ops.static_range
warp_specialize = emu.ops.warp_specialize
grid_wait = emu.ops.grid_wait
grid_launch_dependents = emu.ops.grid_launch_dependents
load = emu.ops.load
store = emu.ops.store
atomic_add = emu.ops.atomic_add
load_acquire = emu.ops.load_acquire
arrive_release = emu.ops.arrive_release
wait_at_least = emu.ops.wait_at_least
take_ticket = emu.ops.take_ticket
reset_after = emu.ops.reset_after
as_int64 = emu.ops.as_int64
mma_zeros = emu.ops.mma_zeros
full_rows = emu.ops.full_rows
full_cols = emu.ops.full_cols
rows = emu.ops.rows
cols = emu.ops.cols
cols_from = emu.ops.cols_from
distances = emu.ops.distances
tile_index = emu.ops.tile_index
tile_zeros = emu.ops.tile_zeros
vec_index = emu.ops.vec_index
like_rows = emu.ops.like_rows
like_cols = emu.ops.like_cols
move_rows = emu.ops.move_rows
move_cols = emu.ops.move_cols
register_operand = emu.ops.register_operand
uniform = emu.ops.uniform
wide_rows = emu.ops.wide_rows
pin = emu.ops.pin
trans = emu.ops.trans
where = emu.ops.where
where_le = emu.ops.where_le
maximum = emu.ops.maximum
minimum = emu.ops.minimum
absolute = emu.ops.absolute
exp2 = emu.ops.exp2
log2 = emu.ops.log2
lg2 = emu.ops.lg2
fdiv = emu.ops.fdiv
rcp = emu.ops.rcp
cdiv = emu.ops.cdiv
reduce_max = emu.ops.reduce_max
reduce_sum = emu.ops.reduce_sum
cumsum = emu.ops.cumsum
alloc = emu.ops.alloc
alloc_plain = emu.ops.alloc_plain
alias = emu.ops.alias
smem_store = emu.ops.smem_store
smem_load = emu.ops.smem_load
smem_load_rows = emu.ops.smem_load_rows
smem_load_cols = emu.ops.smem_load_cols
zero_rows = emu.ops.zero_rows
smem_operand = emu.ops.smem_operand
fence_async = emu.ops.fence_async
role_sync = emu.ops.role_sync
alloc_barriers = emu.ops.alloc_barriers
barrier_wait = emu.ops.barrier_wait
barrier_arrive = emu.ops.barrier_arrive
alloc_named = emu.ops.alloc_named
named_wait = emu.ops.named_wait
named_wait_for = emu.ops.named_wait_for
named_arrive = emu.ops.named_arrive
copy = emu.ops.copy
evict_first = emu.ops.evict_first
tma_store = emu.ops.tma_store
tma_store_wait = emu.ops.tma_store_wait
wgmma = emu.ops.wgmma
wgmma_wait = emu.ops.wgmma_wait
cluster_dims = emu.ops.cluster_dims
cluster_rank = emu.ops.cluster_rank
cluster_barrier = emu.ops.cluster_barrier
remote_store = emu.ops.remote_store
remote_load = emu.ops.remote_load
remote_load_rows = emu.ops.remote_load_rows
cluster_push = emu.ops.cluster_push
cluster_deal = emu.ops.cluster_deal
cluster_push_wait = emu.ops.cluster_push_wait
cluster_arrive = emu.ops.cluster_arrive
cluster_wait = emu.ops.cluster_wait
compact = emu.ops.compact


def jit(function):
    return function


def constexpr(value):
    return value
