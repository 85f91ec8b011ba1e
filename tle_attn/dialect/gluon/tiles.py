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
def cols_from(tile, start):
    # in parts 8 j + c: a thread has few c, and its j are constants, which a compiler that saw whole indices would keep in registers
    index = gl.arange(0, tile.shape[1], gl.SliceLayout(0, tile.type.layout)).reshape([tile.shape[1] // 8, 8])
    parts: constexpr = index.type.layout
    index = (start + gl.arange(0, 8, gl.SliceLayout(0, parts)))[None, :] + (8 * gl.arange(0, tile.shape[1] // 8, gl.SliceLayout(1, parts)))[:, None]
    return gl.convert_layout(index.reshape([tile.shape[1]]), gl.SliceLayout(0, tile.type.layout), assert_trivial=True)


@gluon.jit
def distances(tile, start):
    parts: constexpr = tile.reshape([tile.shape[0], tile.shape[1] // 8, 8]).type.layout
    row = gl.arange(0, tile.shape[0], gl.SliceLayout(1, gl.SliceLayout(2, parts)))[:, None][:, :, None]
    column = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(1, parts)))[None, :][:, None, :]
    group = (8 * gl.arange(0, tile.shape[1] // 8, gl.SliceLayout(0, gl.SliceLayout(2, parts))))[None, :][:, :, None]
    apart = (start + row - column).to(gl.float32) - group.to(gl.float32)
    return gl.convert_layout(apart.reshape([tile.shape[0], tile.shape[1]]), tile.type.layout, assert_trivial=True)


@gluon.jit
def lg2(x):
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def rcp(x):
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


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
def where_le(a, b, x, y):
    return gl.inline_asm_elementwise("{ .reg .pred p; setp.le.s32 p, $2, $3; selp.f32 $0, $1, $4, p; }", "=f,f,r,r,f", [x, a, b, y], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def uniform(x):
    # ptxas takes a value read from shared memory for one that differs between lanes, and every loop that it bounds for divergent.
    return gl.inline_asm_elementwise("redux.sync.or.b32 $0, $1, 0xffffffff;", "=r,r", [x], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def pin(vector):
    # ptxas moves a wgmma wait up over pure arithmetic. A store that never happens, as the values are not below -1, keeps them in front of it; a branch or a
    # trap in its place would serialise the wgmmas.
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 z; mov.u32 z, 0; setp.lt.f32 p, $1, 0fBF800000; @p st.volatile.shared.f32 [z], $1; mov.b32 $0, $1; }",
        "=f,f", [vector], dtype=gl.float32, is_pure=False, pack=1)


@gluon.constexpr_function
def _wide_rows_layout(cols):
    """[64, cols]: the rows of a wgmma accumulator where they are, 4 neighbouring columns a thread, the 4 lanes of a row along 16."""
    registers = [[0, 1], [0, 2], [8, 0]] + [[0, 16 << i] for i in range((cols // 16).bit_length() - 1)]
    return gl.DistributedLinearLayout(reg_bases=registers, lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], warp_bases=[[16, 0], [32, 0]], block_bases=[], shape=[64, cols])


@gluon.jit
def wide_rows(tile):
    return gl.convert_layout(tile, _wide_rows_layout(tile.shape[1]))


@gluon.jit
def trans(tile):
    return tile.permute((1, 0))


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def cumsum(vector):
    return gl.associative_scan(vector, 0, _add)
