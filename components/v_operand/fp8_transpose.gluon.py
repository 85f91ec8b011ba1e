"""FP8 transpose for Gluon: ldmatrix.trans on 16-bit pairs, PRMT, stmatrix; P converted in the operand's own fragment order."""


@gluon.constexpr_function
def _pairs_layout(dim, keys):
    """[dim / 2 pairs of head elements, keys] of 16 bits as the fragments of ldmatrix.trans, 4 warps along the pairs."""
    registers = [[0, 1], [0, 8], [8, 0]] + [[0, 16 << i] for i in range((keys // 16).bit_length() - 1)]
    registers += [[64, 0]] if dim == 256 else []
    warps = [[16, 0], [0, 0]] if dim == 64 else [[16, 0], [32, 0]]
    return gl.DistributedLinearLayout(reg_bases=registers, lane_bases=[[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp_bases=warps, block_bases=[], shape=[dim // 2, keys])


@gluon.jit
def _key_order(tile):
    """Bits (b4 | b3 | b2 b1 | b0) of a key's number to (b4 | b2 b1 | b3 | b0)."""
    return tile.reshape([tile.shape[0], tile.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([tile.shape[0], tile.shape[1]])


@gluon.jit
def transposed(v_tile, valid):
    keys: constexpr = v_tile.mem.shape[0]
    dim: constexpr = v_tile.mem.shape[1]
    pairs = _reinterpret(v_tile.mem, gl.int16, [keys, dim // 2], gl.NVMMASharedLayout(min(dim, 128), 16, rank=2)).permute((1, 0)).load(_pairs_layout(dim, keys))
    if valid < keys:
        pairs = gl.where((gl.arange(0, keys, gl.SliceLayout(0, pairs.type.layout)) < valid)[None, :], pairs, 0)
    even, odd = gl.inline_asm_elementwise(
        "prmt.b32 $0, $2, $3, 0x6420; prmt.b32 $1, $2, $3, 0x7531;", "=&r,=r,r,r", [pairs], dtype=(gl.float8e4nv, gl.float8e4nv), is_pure=True, pack=4
    )
    return _key_order(gl.join(even, odd).permute((2, 0, 1)).reshape([dim, keys]))


@gluon.jit
def p_operand(p, o):
    p = gl.convert_layout(_key_order(p), gl.DotOperandLayout(0, o.type.layout, 4), assert_trivial=True)
    return gl.inline_asm_elementwise(
        "{ .reg .b16 a, b; cvt.rn.satfinite.e4m3x2.f32 a, $2, $1; cvt.rn.satfinite.e4m3x2.f32 b, $4, $3; mov.b32 $0, {a, b}; }",
        "=r,f,f,f,f", [p], dtype=gl.float8e4nv, is_pure=True, pack=4
    )


@gluon.jit
def in_order(o):
    dim: constexpr = o.shape[1]
    return gl.convert_layout(o.reshape([64, 2, dim // 2]).permute((0, 2, 1)).reshape([64, dim]), _wide_rows_layout(dim), assert_trivial=True)


@gluon.jit
def interleaved(even, odd):
    dim: constexpr = 2 * even.shape[1]
    return gl.convert_layout(gl.join(even, odd).reshape([64, dim]), _wide_rows_layout(dim), assert_trivial=True)
