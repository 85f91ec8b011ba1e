"""A kernel that compacts a list between guard words, for the emulation and for the GPU."""

from __future__ import annotations

import itertools

import torch

GUARD, BEFORE, CELLS = -12345, 7, 2048
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


def kept(width: int, pattern: str) -> list[int]:
    """Values that stay: positions from 1 on."""
    return {"none": [], "all": list(range(1, width + 1)), "alternating": list(range(1, width + 1, 2))}[pattern]


def arguments(width: int, pattern: str) -> dict[str, torch.Tensor | int]:
    """Values to compact, 0 where one is to go; the last vector is filled up with such."""
    x = torch.zeros(-(-width // 32) * 32, dtype=torch.int32)
    values = torch.tensor(kept(width, pattern), dtype=torch.int32)
    x[values.long() - 1] = values
    return {"x": x, "out": torch.zeros(CELLS + 1, dtype=torch.int32), "n": len(x) // 32}


def check(out: torch.Tensor, width: int, pattern: str) -> None:
    """Ascending, complete, counted, and the words before and after are as they were."""
    want = kept(width, pattern)
    end = BEFORE + len(want)
    assert out[BEFORE:end].tolist() == want
    assert (out[:BEFORE] == GUARD).all() and (out[end:CELLS] == GUARD).all()
    assert out[CELLS] == end
