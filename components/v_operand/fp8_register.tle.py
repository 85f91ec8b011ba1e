"""FP8 microkernels for TLE: V^T by a TLE-Raw device function, P through a local pointer."""

import triton.experimental.tle.language.raw as tle_raw
from triton.experimental.tle.raw import dialect


@dialect(name="cuda", file="fp8_register.cu", extern_func_name="tle_attn_take_v_fp8", deferred=True)
def _take_v_fp8(destination, source): ...


@triton.jit
def _token_order(tile):
    return tl.reshape(tl.permute(tl.reshape(tile, [tile.shape[0], tile.shape[1] // 16, 2, 8]), [0, 1, 3, 2]), [tile.shape[0], tile.shape[1]])


@triton.jit
def take_v(v_tile):
    return tle_raw.call(_take_v_fp8, [tl.zeros([128, 64], tl.float8e4nv), v_tile], output_indices=[0])


@triton.jit
def publish_p(p_tile, p, limit: tl.constexpr):
    tl.store(tle.gpu.local_ptr(p_tile), _token_order(tl.trans(p.to(p_tile.dtype))))
    fence_async()
    return tl.max(tl.max((p > limit).to(tl.int32), axis=0), axis=0)
