"""Every operation of the dialect under its name (see `tle_attn/dialect/table.py`)."""

from tle_attn.emu.atomics import atomic_add, load_acquire
from tle_attn.emu.barriers import PENDING, READY, alloc_barriers, barrier_arrive, barrier_wait
from tle_attn.emu.clusters import cluster_barrier, cluster_dims, cluster_push, cluster_push_wait, cluster_rank, remote_load, remote_store
from tle_attn.emu.integers import device_range
from tle_attn.emu.memory import load, store
from tle_attn.emu.named import alloc_named, named_arrive, named_wait
from tle_attn.emu.registers import (
    as_int64,
    cdiv,
    cols,
    cumsum,
    exp2,
    fdiv,
    full_cols,
    full_rows,
    like_cols,
    like_rows,
    log2,
    maximum,
    minimum,
    mma_zeros,
    move_cols,
    move_rows,
    reduce_max,
    reduce_sum,
    register_operand,
    rows,
    tile_index,
    tile_zeros,
    trans,
    vec_index,
    where,
)
from tle_attn.emu.roles import grid_launch_dependents, grid_wait, num_programs, program_id, role_sync, static_range, warp_specialize
from tle_attn.emu.shared import alias, alloc, alloc_plain, fence_async, smem_load, smem_load_cols, smem_load_rows, smem_store
from tle_attn.emu.tma import copy, tma_store, tma_store_wait
from tle_attn.emu.votes import compact
from tle_attn.emu.wgmma import wgmma, wgmma_wait

__all__ = [name for name in dir() if not name.startswith("_")]
