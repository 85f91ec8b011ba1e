"""P handed to the product: converted, stored transposed, and its range tested, in one assembly block."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# ---- P handed to the product, by stmatrix: the accumulator fragment of S^T, transposed 8 x 8 at a time, into the swizzled tile
# The stores, the proxy fence and the barrier of the role are one assembly block, and the test P > limit rides on the barrier (barrier.red.or), so that a
# step has one barrier.  The compiler sees no writer of the tile and adds none.

@gluon.constexpr_function
def _publish(columns, limit, words, convert):
    """Operands: E = columns / 2 dummies, then E each of P (fp32), tile address and lane offset.

    `convert`: assembly, as a format, that turns p[0] .. p[3] into the words r[0], ..: key row g with two queries, then key row g + 8 with the same.
    It may use the 16-bit registers x and y.
    """
    e = columns // 2
    total = words * e // 4
    p = [f"${e + i}" for i in range(e)]
    text = f"{{ .reg .b32 at, {', '.join(f'r{i}' for i in range(total))}; .reg .b16 x, y; .reg .f32 top; .reg .pred over; add.u32 at, ${2 * e}, ${3 * e}; mov.f32 top, {p[0]}; "
    text += " ".join(f"max.f32 top, top, {x};" for x in p[1:]) + f" setp.gt.f32 over, top, {limit:.8e}; "
    for t in range(e // 4):
        text += convert.format(p=p[4 * t : 4 * t + 4], r=[f"r{words * t + i}" for i in range(words)]) + " "
    count = min(4, total)
    for k in range(0, total, count):
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
def _publish_by(p_tile, p, limit: constexpr, lane_offset: constexpr, words: constexpr, convert: constexpr):
    """`lane_offset`: assembly for the byte offset, in the tile, of the 16-byte row that a lane's address names in stmatrix."""
    offset = gl.inline_asm_elementwise(lane_offset, "=r", [], dtype=gl.int32, is_pure=True, pack=1)
    assembly: constexpr = _publish(p.shape[1], limit, words, convert)
    gl.inline_asm_elementwise(assembly, _publish_operands(p.shape[1]), [p, _address(p_tile.mem), offset], dtype=gl.int32, is_pure=False, pack=p.shape[1] // 2)
    return gl.inline_asm_elementwise(_hooked("flag", "mov.b32 $0, tle_attn_flag;"), "=r", [], dtype=gl.int32, is_pure=False, pack=1)
