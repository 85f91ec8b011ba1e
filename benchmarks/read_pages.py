"""Kernel of the read floor: copy pages into shared memory by TMA and do nothing with them.

Part of a module: `benchmarks.floor` puts the dialect's `evict_first` and decode's `spread` before it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

# The name changed between Triton 3.6 and 3.9, which keeps the old one as a function that raises.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.jit
def _start(k_desc, v_desc, k_slot, v_slot, full, page, unit, heads, share, HINTS: gl.constexpr):
    head = unit % heads
    if HINTS:
        evict_first(1 if spread(unit // heads) < share else 0)  # noqa: F821
    mbarrier.expect(full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    _load(k_desc, [page, head, 0, 0], full, k_slot)
    _load(v_desc, [page, head, 0, 0], full, v_slot)


@gluon.jit
def read_pages(k_desc, v_desc, page_ids, units, heads, share, STAGES: gl.constexpr, HINTS: gl.constexpr):
    """units: (page, head) pairs of the whole grid; every CTA reads an equal run of them.  One warp.  With HINTS `share` of 16 pages leave the L2 cache first."""
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_type.shape, v_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
    fence_async_shared()
    first = units * gl.program_id(0) // gl.num_programs(0)
    last = units * (gl.program_id(0) + 1) // gl.num_programs(0)
    # all ids of the first round are under way before any is used
    ids = ()
    for s in gl.static_range(STAGES):
        ids = ids + (gl.load(page_ids + (first + s) // heads, mask=first + s < last, other=0),)
    page = gl.load(page_ids + (first + STAGES) // heads, mask=first + STAGES < last, other=0)
    for s in gl.static_range(STAGES):
        if first + s < last:
            _start(k_desc, v_desc, k_ring.index(s), v_ring.index(s), full.index(s), ids[s], first + s, heads, share, HINTS)
    slot = 0
    phase = 0
    for i in range(first, last):
        mbarrier.wait(full.index(slot), phase)
        if i + STAGES < last:
            _start(k_desc, v_desc, k_ring.index(slot), v_ring.index(slot), full.index(slot), page, i + STAGES, heads, share, HINTS)
        page = gl.load(page_ids + (i + STAGES + 1) // heads, mask=i + STAGES + 1 < last, other=0)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase ^= 1
