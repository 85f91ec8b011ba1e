"""A kernel that compacts a list between guard words, for the emulation and for the GPU."""

from __future__ import annotations

import itertools

GUARD, BEFORE, CELLS = -12345, 7, 1088
#: widths around a warp, with masks that keep nothing, everything and every other element
CASES = tuple(itertools.product((1, 31, 32, 33, 64, 1024), ("none", "all", "alternating")))
SIGNATURE = {"x": "*i32", "out": "*i32", "n": "i32"}
TEXT = '''
# ==== kernel text: the same for every target
CELLS = constexpr(2048)
GUARD = constexpr(-12345)
BEFORE = constexpr(7)


@jit
def compact_between_guards(x, out, n):
    found = alloc_plain([CELLS], I32)
    cell = vec_index(CELLS)
    smem_store(found, cell * 0 + GUARD)
    role_sync()
    count = BEFORE
    for t in range(n):
        v = load(x + t * 32 + vec_index(32))
        count = compact((v > 0).to(I32), v, found, count)
    role_sync()
    store(out + cell, smem_load(found))
    store(out + CELLS, count)
'''
