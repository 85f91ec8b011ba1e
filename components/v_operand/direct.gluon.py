"""P as the B operand: bf16, stored by stmatrix into the swizzled [N, 64 keys] tile."""


@gluon.constexpr_function
def _publish_offset(columns):
    """Byte offset, in the P tile, of the 16-byte row that this lane's address names in stmatrix: matrix j of 4 is (key half j & 1, query rows 8 * (j >> 1) ..)."""
    return (
        "{ .reg .b32 lane, warp, q, c, h; mov.u32 lane, %tid.x; shr.u32 warp, lane, 5; and.b32 warp, warp, 3; and.b32 lane, lane, 31; and.b32 q, lane, 7; "
        f"shr.u32 h, lane, 4; shl.b32 h, h, 3; add.u32 q, q, h; and.b32 q, q, {columns - 1}; "
        "shr.u32 h, lane, 3; and.b32 h, h, 1; shl.b32 c, warp, 1; or.b32 c, c, h; and.b32 h, q, 7; xor.b32 c, c, h; shl.b32 c, c, 4; shl.b32 q, q, 7; add.u32 $0, c, q; }"
    )


@gluon.jit
def publish_p(p_tile, p, limit: constexpr):
    convert: constexpr = "cvt.rn.bf16x2.f32 {r[0]}, {p[1]}, {p[0]}; cvt.rn.bf16x2.f32 {r[1]}, {p[3]}, {p[2]};"
    return _publish_by(p_tile, p, limit, _publish_offset(p.shape[1]), 2, convert)
