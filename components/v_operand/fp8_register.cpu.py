"""Semantic definitions of the fp8 microkernels."""


def _token_order(tile):
    """Columns t of each group of 16 to 2 (t & 7) + (t >> 3)."""
    return tile.reshape([tile.shape[0], tile.shape[1] // 16, 2, 8]).permute((0, 1, 3, 2)).reshape([tile.shape[0], tile.shape[1]])


def take_v(v_tile):
    """V^T with rows d' and columns t'."""
    v = emu.ops.trans(emu.ops.smem_load(v_tile))
    return _token_order(v.reshape([v.shape[0] // 16, 8, 2, v.shape[1]]).permute((0, 2, 1, 3)).reshape([v.shape[0], v.shape[1]]))


def publish_p(p_tile, p, limit):
    """P^T with columns t' in shared memory, visible to the role's wgmma; 1 if an element is above `limit`."""
    emu.ops.smem_store(p_tile, _token_order(emu.ops.trans(p.to(p_tile.dtype))))
    emu.ops.fence_async()
    return emu.ops.any_greater(p, limit)
