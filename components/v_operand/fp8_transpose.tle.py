"""FP8 transpose for TLE: a TLE-Raw device function reads the tile; P is put in order and converted by the compiler."""

import triton.experimental.tle.language.raw as tle_raw
from triton.experimental.tle.raw import dialect


@dialect(name="cuda", file="fp8_transpose.cu", extern_func_name="tle_attn_transpose_v_fp8", deferred=True)
def _transpose_v_fp8(destination, source): ...


@triton.jit
def _key_order(tile):
    return tl.reshape(tl.permute(tl.reshape(tile, [tile.shape[0], tile.shape[1] // 16, 2, 4, 2]), [0, 1, 3, 2, 4]), [tile.shape[0], tile.shape[1]])


@triton.jit
def transposed(v_tile, valid):
    v = tle_raw.call(_transpose_v_fp8, [tl.zeros([v_tile.shape[1], v_tile.shape[0]], tl.float8e4nv), v_tile], output_indices=[0])
    if valid < v_tile.shape[0]:
        key = _key_order(tl.arange(0, v_tile.shape[0])[None, :])
        v = tl.where(key < valid, v.to(tl.float32), 0.0).to(tl.float8e4nv)
    return v


@triton.jit
def p_operand(p, o):
    return _key_order(p).to(tl.float8e4nv)


@triton.jit
def in_order(o):
    return tl.reshape(tl.permute(tl.reshape(o, [o.shape[0], 2, o.shape[1] // 2]), [0, 2, 1]), [o.shape[0], o.shape[1]])


@triton.jit
def interleaved(even, odd):
    return tl.reshape(tl.join(even, odd), [even.shape[0], 2 * even.shape[1]])
