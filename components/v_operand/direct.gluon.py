"""P as the B operand by stmatrix: the accumulator fragment of S^T, transposed 8 x 8 at a time, into the swizzled [N, 64 keys] tile.

The stores, the proxy fence and the barrier of the role are one assembly block, and the test P > limit rides on the barrier (barrier.red.or), so that a
step has one barrier.  The compiler sees no writer of the tile and adds none.
"""


@gluon.constexpr_function
def _publish_offset(columns):
    """Byte offset, in the P tile, of the 16-byte row that this lane's address names in stmatrix: matrix j of 4 is (key half j & 1, query rows 8 * (j >> 1) ..)."""
    return (
        "{ .reg .b32 lane, warp, q, c, h; mov.u32 lane, %tid.x; shr.u32 warp, lane, 5; and.b32 warp, warp, 3; and.b32 lane, lane, 31; and.b32 q, lane, 7; "
        f"shr.u32 h, lane, 4; shl.b32 h, h, 3; add.u32 q, q, h; and.b32 q, q, {columns - 1}; "
        "shr.u32 h, lane, 3; and.b32 h, h, 1; shl.b32 c, warp, 1; or.b32 c, c, h; and.b32 h, q, 7; xor.b32 c, c, h; shl.b32 c, c, 4; shl.b32 q, q, 7; add.u32 $0, c, q; }"
    )


@gluon.constexpr_function
def _publish(columns, limit):
    """Operands: E = columns / 2 dummies, then E each of P (fp32), tile address and lane offset."""
    e = columns // 2
    p = [f"${e + i}" for i in range(e)]
    text = f"{{ .reg .b32 at, {', '.join(f'r{i}' for i in range(e // 2))}; .reg .f32 top; .reg .pred over; add.u32 at, ${2 * e}, ${3 * e}; mov.f32 top, {p[0]}; "
    text += " ".join(f"max.f32 top, top, {x};" for x in p[1:]) + f" setp.gt.f32 over, top, {limit:.8e}; "
    # registers 4t .. 4t+3: key row g with queries 8t + 2c, 2c + 1, then key row g + 8 with the same
    for t in range(e // 4):
        a = p[4 * t : 4 * t + 4]
        text += f"cvt.rn.bf16x2.f32 r{2 * t}, {a[1]}, {a[0]}; cvt.rn.bf16x2.f32 r{2 * t + 1}, {a[3]}, {a[2]}; "
    count = min(4, e // 2)
    for k in range(0, e // 2, count):
        if k:
            text += "add.u32 at, at, 2048; "
        text += f"stmatrix.sync.aligned.m8n8.x{count}.trans.shared.b16 [at], {{{', '.join(f'r{i}' for i in range(k, k + count))}}}; "
    text += "fence.proxy.async.shared::cta; barrier.cta.red.or.pred over, 15, 128, over; selp.b32 tle_attn_flag, 1, 0, over; "
    return text + " ".join(f"mov.u32 ${i}, 0;" for i in range(e)) + " }"


@gluon.constexpr_function
def _publish_operands(columns):
    e = columns // 2
    return ",".join(["=&r"] * e + ["f"] * e + ["r"] * (2 * e))


@gluon.jit
def publish_p(p_tile, p, limit: constexpr):
    offset = gl.inline_asm_elementwise(_publish_offset(p.shape[1]), "=r", [], dtype=gl.int32, is_pure=True, pack=1)
    assembly: constexpr = _publish(p.shape[1], limit)
    gl.inline_asm_elementwise(assembly, _publish_operands(p.shape[1]), [p, _address(p_tile.mem), offset], dtype=gl.int32, is_pure=False, pack=p.shape[1] // 2)
    return gl.inline_asm_elementwise(_hooked("flag", "mov.b32 $0, tle_attn_flag;"), "=r", [], dtype=gl.int32, is_pure=False, pack=1)
