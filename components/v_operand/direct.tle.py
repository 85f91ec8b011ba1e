"""Publishing P through a local pointer; the compiler places the fence and the barrier."""


@triton.jit
def publish_p(p_tile, p, limit: tl.constexpr):
    tl.store(tle.gpu.local_ptr(p_tile), tl.trans(p.to(p_tile.dtype)))
    fence_async()
    return tl.max(tl.max((p > limit).to(tl.int32), axis=0), axis=0)
