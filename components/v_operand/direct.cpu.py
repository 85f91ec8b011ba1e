"""Semantic definition of publishing P."""


def publish_p(p_tile, p, limit):
    """P^T in shared memory, visible to the role's wgmma; 1 if an element is above `limit`."""
    emu.ops.smem_store(p_tile, emu.ops.trans(p.to(p_tile.dtype)))
    emu.ops.fence_async()
    return emu.ops.any_greater(p, limit)
