"""Semantic definitions of the fp8 microkernels."""


def _key_order(tile):
    """Bits (b4 | b3 | b2 b1 | b0) of a key's number to (b4 | b2 b1 | b3 | b0)."""
    return tile.reshape([tile.shape[0], tile.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([tile.shape[0], tile.shape[1]])


def transposed(v_tile, valid):
    """V^T with rows d' and columns t', keys from `valid` on zero."""
    v = emu.ops.smem_load(v_tile)
    v = emu.ops.where((emu.ops.rows(v) < valid)[:, None], v.to(emu.F32), 0.0).to(v_tile.dtype)
    keys, dim = v.shape
    return _key_order(emu.ops.trans(v).reshape([dim // 2, 2, keys]).permute((1, 0, 2)).reshape([dim, keys]))


def p_operand(p, o):
    """P in e4m3 with columns t'."""
    return emu.ops.register_operand(_key_order(p.to(emu.FP8)), o)


def in_order(o):
    """Columns d' in order."""
    return o.reshape([64, 2, o.shape[1] // 2]).permute((0, 2, 1)).reshape([64, o.shape[1]])


def interleaved(even, odd):
    """Even and odd head elements in order."""
    return emu.ops.joined(even, odd).reshape([even.shape[0], 2 * even.shape[1]])


def raw_transposed(v_tile):
    """What the TLE-Raw device function gives."""
    return transposed(v_tile, v_tile.shape[0])
