"""What the kernels of this folder share: one small kernel per operation of the dialect, or per small group; `op_cases.py` says how each is launched."""
# ruff: noqa: F821 (the names are the dialect's; a target's prelude comes first)
# ==== kernel text: the same for every target
PAGE_BYTES = constexpr(64 * 128 * 2)


@jit
def load_tile(x, m, n):
    r, c = tile_index(m, n, 8)
    return load(x + r[:, None] * n + c[None, :])


@jit
def store_tile(out, tile, n):
    store(out + rows(tile)[:, None] * n + cols(tile)[None, :], tile)
