"""FP8 microkernels for Gluon: V^T by ldmatrix.trans on 16-bit pairs plus PRMT, P by stmatrix.trans on pairs of keys g and g + 8."""


@gluon.constexpr_function
def _pair_layout():
    """[64 pairs of head elements, 64 tokens] of 16 bits as 8 x 8 matrices of ldmatrix.trans, 4 warps along the pairs."""
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 8], [0, 16], [0, 32], [32, 0]], lane_bases=[[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp_bases=[[8, 0], [16, 0]], block_bases=[], shape=[64, 64]
    )


@gluon.jit
def take_v(v_tile):
    pairs = _reinterpret(v_tile.mem, gl.int16, [64, 64], gl.NVMMASharedLayout(128, 16, rank=2)).permute((1, 0)).load(_pair_layout())
    even, odd = gl.inline_asm_elementwise(
        "prmt.b32 $0, $2, $3, 0x6240; prmt.b32 $1, $2, $3, 0x7351;", "=&r,=r,r,r", [pairs], dtype=(gl.float8e4nv, gl.float8e4nv), is_pure=True, pack=4
    )
    v = gl.join(even, odd).reshape([8, 8, 64, 2]).permute((0, 3, 1, 2)).reshape([128, 64])
    return v.reshape([128, 4, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([128, 64])


@gluon.constexpr_function
def _publish_offset(columns):
    """Byte offset, in the P tile of 64-byte rows, of the 16-byte row that this lane's address names in stmatrix: matrix j holds query rows 8 j .., the warp's 16 keys."""
    return (
        "{ .reg .b32 lane, warp, q, c, h; mov.u32 lane, %tid.x; shr.u32 warp, lane, 5; and.b32 warp, warp, 3; and.b32 lane, lane, 31; "
        f"and.b32 q, lane, {columns - 1}; shr.u32 h, q, 1; and.b32 h, h, 3; xor.b32 c, warp, h; shl.b32 c, c, 4; shl.b32 q, q, 6; add.u32 $0, c, q; }}"
    )


@gluon.jit
def publish_p(p_tile, p, limit: constexpr):
    # a 16-bit element is the pair (g, g + 8) of one query
    convert: constexpr = "cvt.rn.satfinite.e4m3x2.f32 x, {p[2]}, {p[0]}; cvt.rn.satfinite.e4m3x2.f32 y, {p[3]}, {p[1]}; mov.b32 {r[0]}, {{x, y}};"
    return _publish_by(p_tile, p, limit, _publish_offset(p.shape[1]), 1, convert)
