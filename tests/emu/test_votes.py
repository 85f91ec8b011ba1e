"""Compaction by a warp: order, bounds, completeness."""

import pytest
import torch

from tle_attn import emu


@pytest.mark.parametrize("width", [32, 64, 1024])
@pytest.mark.parametrize("pattern", ["none", "all", "alternating", "random"])
def test_ascending_and_complete(load_text, generator, width, pattern):
    mask = {
        "none": torch.zeros(width),
        "all": torch.ones(width),
        "alternating": torch.arange(width) % 2,
        "random": torch.randint(0, 2, (width,), generator=generator),
    }[pattern].to(torch.uint8)
    out = torch.full((1025,), -5, dtype=torch.int32)
    module = load_text("""
@jit
def f(mask, out, n):
    found = alloc_plain([1024], I32)
    count = 0
    for t in range(n):
        i = t * 32 + vec_index(32)
        count = compact((load(mask + i) != 0).to(I32), i * 3, found, count)
    i = vec_index(1024)
    store(out + i, smem_load(found), mask=i < count)
    store(out + 1024, count)
""")
    emu.launch(module.f, (1,), dict(mask=("*u8", mask), out=("*i32", out), n=("i32", width // 32)), threads=32)
    kept = (mask.nonzero().flatten() * 3).int()
    assert out[1024] == len(kept)
    assert torch.equal(out[: len(kept)], kept) and (out[len(kept) : 1024] == -5).all()


WRONG = {
    "past the end": ("compact(one, i, found, 40)", emu.OutOfBounds, r"writes elements 40 .. 71 of found \(64 elements\)"),
    "before the start": ("compact(one, i, found, -1)", emu.OutOfBounds, "writes elements -1"),
    "a swizzled buffer": ("compact(one, i, tile, 0)", emu.EmulationError, "a plain int32 vector"),
    "a float buffer": ("compact(one, i, floats, 0)", emu.EmulationError, "a plain int32 vector"),
    "a mask of conditions": ("compact(i > 0, i, found, 0)", emu.EmulationError, "int32 vectors of equal length"),
    "a mask of other numbers": ("compact(i, i, found, 0)", emu.EmulationError, "other than 0 and 1"),
    "half a warp": ("compact(vec_index(16) * 0, vec_index(16), found, 0)", emu.EmulationError, "a multiple of 32"),
}


@pytest.mark.parametrize("call, error, message", WRONG.values(), ids=WRONG)
def test_wrong_uses(load_text, call, error, message):
    module = load_text(f"""
@jit
def f():
    found = alloc_plain([64], I32)
    floats = alloc_plain([64], F32)
    tile = alloc([64, 64], BF16)
    i = vec_index(32)
    one = i * 0 + 1
    {call}
""")
    with pytest.raises(error, match=message):
        emu.launch(module.f, (1,), {}, threads=32)


def test_one_warp_only(load_text):
    module = load_text("@jit\ndef f():\n    found = alloc_plain([64], I32)\n    compact(vec_index(32) * 0, vec_index(32), found, 0)\n")
    with pytest.raises(emu.EmulationError, match="which has 128 threads: one warp votes"):
        emu.launch(module.f, (1,), {})


def test_the_list_is_ordered_like_any_other_store(load_text):
    text = """
@jit
def search(found, done):
    compact(vec_index(32) * 0 + 1, vec_index(32), found, 0)
    barrier_arrive(done[0])


@jit
def read(found, done):
    {wait}
    smem_load(found)


@jit
def f():
    found = alloc_plain([32], I32)
    done = alloc_barriers(1)
    warp_specialize([(read, (found, done)), (search, (found, done))], [1], [24])
"""
    for seed in range(5):
        emu.launch(load_text(text.format(wait="barrier_wait(done[0], 0)")).f, (1,), {}, seed=seed)
        with pytest.raises((emu.Race, emu.Unwritten)):
            emu.launch(load_text(text.format(wait="role_sync()")).f, (1,), {}, seed=seed)
