"""Semantic definitions of the fp8 microkernels."""


def _key_order(tile):
    """Bits (b4 | b3 | b2 b1 | b0) of a key's number to (b4 | b2 b1 | b3 | b0)."""
    return tile.reshape([tile.shape[0], tile.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([tile.shape[0], tile.shape[1]])


def transposed(v_tile, valid):
    """V^T of even and of odd head elements, columns t', keys from `valid` on zero."""
    v = emu.ops.smem_load(v_tile)
    v = emu.ops.where((emu.ops.rows(v) < valid)[:, None], v.to(emu.F32), 0.0).to(v_tile.dtype)
    keys, dim = v.shape
    even, odd = emu.ops.parted(v.reshape([keys, dim // 2, 2]))
    return _key_order(emu.ops.trans(even)), _key_order(emu.ops.trans(odd))


def p_operand(p, o):
    """P in e4m3 with columns t'."""
    return emu.ops.register_operand(_key_order(p.to(emu.FP8)), o)


def output_rows(o):
    """Even and odd head elements interleaved."""
    rows, half = o[0].shape
    return emu.ops.joined(o[0], o[1]).reshape([rows, 2 * half])


def raw_transposed(v_tile):
    """What the TLE-Raw device function gives: even above odd head elements."""
    even, odd = transposed(v_tile, v_tile.shape[0])
    return emu.ops.joined(even, odd).permute((2, 0, 1)).reshape([v_tile.shape[1], v_tile.shape[0]])
