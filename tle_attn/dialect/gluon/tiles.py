"""Tiles in registers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# ---- tiles in registers

@gluon.jit
def mma_zeros(m: constexpr, n: constexpr, dtype: constexpr):
    return gl.full([m, n], 0.0, gl.float32, _mma_layout(m, n, dtype, gl.num_warps()))


@gluon.jit
def full_rows(tile, value):
    return gl.full([tile.shape[0]], value, gl.float32, gl.SliceLayout(1, tile.type.layout))


@gluon.jit
def full_cols(tile, value):
    return gl.full([tile.shape[1]], value, gl.float32, gl.SliceLayout(0, tile.type.layout))


@gluon.jit
def rows(tile):
    return gl.arange(0, tile.shape[0], gl.SliceLayout(1, tile.type.layout))


@gluon.jit
def cols(tile):
    return gl.arange(0, tile.shape[1], gl.SliceLayout(0, tile.type.layout))


@gluon.jit
def tile_index(m: constexpr, n: constexpr, vec: constexpr):
    layout: constexpr = _coalesced_layout(n, vec, gl.num_warps())
    return gl.arange(0, m, gl.SliceLayout(1, layout)), gl.arange(0, n, gl.SliceLayout(0, layout))


@gluon.jit
def tile_zeros(m: constexpr, n: constexpr, vec: constexpr):
    return gl.zeros([m, n], gl.float32, _coalesced_layout(n, vec, gl.num_warps()))


@gluon.jit
def vec_index(n: constexpr):
    return gl.arange(0, n, _vector_layout(1, gl.num_warps()))


@gluon.jit
def like_rows(vector, tile):
    return gl.convert_layout(vector, gl.SliceLayout(1, tile.type.layout), assert_trivial=True)


@gluon.jit
def like_cols(vector, tile):
    return gl.convert_layout(vector, gl.SliceLayout(0, tile.type.layout), assert_trivial=True)


@gluon.jit
def move_rows(vector, tile):
    return gl.convert_layout(vector, gl.SliceLayout(1, tile.type.layout))


@gluon.jit
def move_cols(vector, tile):
    return gl.convert_layout(vector, gl.SliceLayout(0, tile.type.layout))


@gluon.jit
def register_operand(tile, acc):
    layout: constexpr = gl.DotOperandLayout(0, acc.type.layout, 32 // tile.dtype.primitive_bitwidth)
    return gl.convert_layout(tile, layout, assert_trivial=True)


@gluon.jit
def trans(tile):
    return tile.permute((1, 0))


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def cumsum(vector):
    return gl.associative_scan(vector, 0, _add)
