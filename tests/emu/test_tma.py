"""TMA: boxes in and out, zero fill and clipping, bytes, order with registers and with the global memory of other CTAs."""

import pytest
import torch

from tle_attn import emu


def box_reference(tensor: torch.Tensor, corner: list[int], block: list[int]) -> torch.Tensor:
    """The box with zeros outside of the tensor, element by element."""
    out = torch.zeros(block, dtype=tensor.dtype)
    for index in torch.cartesian_prod(*(torch.arange(side) for side in block)).reshape(-1, len(block)).tolist():
        position = [c + i for c, i in zip(corner, index, strict=True)]
        if all(0 <= p < n for p, n in zip(position, tensor.shape, strict=True)):
            out[tuple(index)] = tensor[tuple(position)]
    return out


@pytest.mark.parametrize("corner", [[0, 0, 0, 0], [2, 1, 16, 0], [3, 0, 0, 0], [-1, 0, 0, 0], [2**31 - 1, 0, 0, 0], [1, 1, 40, 0], [1, 1, -8, 0]])
def test_boxes_of_a_paged_cache(load_text, generator, corner):
    cache = torch.randn(3, 48, 2, 32, generator=generator).bfloat16()  # [page, token, head, dim], seen as [page, head, token, dim]
    view = cache.permute(0, 2, 1, 3)
    out = torch.zeros(16, 32, dtype=torch.bfloat16)
    module = load_text(f"""
@jit
def f(desc, out):
    box = alloc([16, 32], BF16)
    full = alloc_barriers(1, expect_bytes=1024)
    evict_first(1)
    copy(desc, box, [1, 1, 16, 32], {corner}, barrier=full[0])
    barrier_wait(full[0], 0)
    r, c = tile_index(16, 32, 8)
    store(out + r[:, None] * 32 + c[None, :], smem_load(box))
""")
    desc = emu.TensorDescriptor(cache, view.shape, view.stride(), (1, 1, 16, 32))
    stats = emu.launch(module.f, (1,), dict(desc=desc, out=("*bf16", out)))
    assert torch.equal(out, box_reference(view, corner, [1, 1, 16, 32]).reshape(16, 32))
    assert stats.copies == 1 and stats.copy_bytes == 1024


@pytest.mark.parametrize("corner", [[0, 0], [8, 64], [24, 0], [-4, 32], [40, 0]])
def test_stores_are_clipped(load_text, generator, corner):
    x = torch.randn(16, 64, generator=generator)
    out = torch.full((32, 96), -7.0)
    module = load_text(f"""
@jit
def f(x, desc):
    box = alloc([16, 64], F32)
    r, c = tile_index(16, 64, 4)
    smem_store(box, load(x + r[:, None] * 64 + c[None, :]))
    fence_async()
    tma_store(desc, box, [16, 64], {corner})
    tma_store_wait()
""")
    emu.launch(module.f, (1,), dict(x=("*f32", x), desc=emu.TensorDescriptor(out, out.shape, out.stride(), (16, 64))))
    expected = torch.full((64, 192), -7.0)
    expected[8 + corner[0] : 24 + corner[0], 32 + corner[1] : 96 + corner[1]] = x
    assert torch.equal(out, expected[8:40, 32:128])


STAGED = """
@jit
def f(x, desc, n):
    box = alloc([2, 16, 64], F32)
    r, c = tile_index(16, 64, 4)
    for t in range(n):
        smem_store(box.slot(t % 2), load(x + (t * 16 + r[:, None]) * 64 + c[None, :]))
        fence_async()
        tma_store(desc, box.slot(t % 2), [16, 64], [t * 16, 0])
        tma_store_wait()
"""


@pytest.mark.parametrize("old, new, error", [
    ("        fence_async()\n", "", emu.MissingProxyFence),
    ("        tma_store_wait()\n", "", emu.Race),
    ("        tma_store_wait()\n", "    tma_store_wait()\n", emu.Race),
    ("box.slot(t % 2), [16", "box.slot((t + 1) % 2), [16", emu.Unwritten),
    ("[t * 16, 0]", "[t * 8, 0]", None),
    ("[t * 16, 0]", "[t * 16]", emu.EmulationError),
])  # fmt: skip
def test_broken_stores(load_text, old, new, error):
    x = torch.randn(64, 64)
    for seed in range(4):
        out = torch.zeros(64, 64)
        args = dict(x=("*f32", x), desc=emu.TensorDescriptor(out, out.shape, out.stride(), (16, 64)), n=("i32", 4))
        emu.launch(load_text(STAGED).f, (1,), args, seed=seed)
        assert torch.equal(out, x)
        if error is not None:
            with pytest.raises(error):
                emu.launch(load_text(STAGED.replace(old, new)).f, (1,), args, seed=seed)


def test_a_store_without_wait_is_not_visible_to_other_ctas(load_text):
    text = """
@jit
def f(desc, x, flag):
    box = alloc([16, 64], F32)
    if program_id(0) == 0:
        smem_store(box, tile_zeros(16, 64, 4) + 3.0)
        fence_async()
        tma_store(desc, box, [16, 64], [0, 0])
        tma_store_wait()
        atomic_add(flag, 1, sem="release")
    else:
        while load_acquire(flag) == 0:
            pass
        store(flag, load(x + 5).to(I32))
"""
    wrong = text.replace("        tma_store_wait()\n", "").replace('sem="release")\n', 'sem="release")\n        tma_store_wait()\n')
    for seed in range(6):
        x, flag = torch.zeros(16, 64), torch.zeros(1, dtype=torch.int32)
        args = dict(desc=emu.TensorDescriptor(x, x.shape, x.stride(), (16, 64)), x=("*f32", x), flag=("*i32", flag))
        emu.launch(load_text(text).f, (2,), args, seed=seed)
        assert flag.item() == 3
        with pytest.raises(emu.Race, match="reads x without any order after cta.0..f's TMA store"):
            emu.launch(load_text(wrong).f, (2,), dict(args, flag=("*i32", torch.zeros(1, dtype=torch.int32))), seed=seed)


def test_a_load_of_what_another_cta_stores_needs_order(load_text):
    text = """
@jit
def f(desc, x):
    box = alloc([16, 64], F32)
    full = alloc_barriers(1, expect_bytes=4096)
    if program_id(0) == 0:
        store(x + 5, 1.0)
    else:
        copy(desc, box, [16, 64], [0, 0], barrier=full[0])
        barrier_wait(full[0], 0)
"""
    for seed in range(6):
        x = torch.zeros(16, 64)
        with pytest.raises(emu.Race):
            emu.launch(load_text(text).f, (2,), dict(desc=emu.TensorDescriptor(x, x.shape, x.stride(), (16, 64)), x=("*f32", x)), seed=seed)


WRONG = {
    "no expected bytes": ("copy(desc, box, [16, 64], [0, 0], barrier=plain[0])", emu.BarrierMisuse, "which has no expect_bytes"),
    "two copies on one slot": ("copy(desc, box, [16, 64], [0, 0], barrier=full[0])\n    copy(desc, other, [16, 64], [0, 0], barrier=full[0])\n"
                               "    barrier_wait(full[0], 0)\n    barrier_wait(full[0], 1)\n    barrier_wait(full[0], 0)", emu.BarrierMisuse, "two copies on one slot|a full use behind"),
    "no store wait before the end": ("smem_store(box, tile_zeros(16, 64, 4))\n    fence_async()\n    tma_store(desc, box, [16, 64], [0, 0])",
                                     emu.Race, "may exit before f's TMA store of its box is done"),
    "no wait before the end": ("copy(desc, box, [16, 64], [0, 0], barrier=full[0])", emu.Race, "may exit while f's TMA load to its box is in flight"),
    "another box": ("copy(desc, box, [8, 64], [0, 0], barrier=full[0])", emu.EmulationError, r"through a descriptor with box \[16, 64\]"),
    "too few offsets": ("copy(desc, box, [16, 64], [0], barrier=full[0])", emu.EmulationError, "are no 2 integer offsets"),
    "another buffer": ("copy(desc, small, [16, 64], [0, 0], barrier=full[0])", emu.EmulationError, "copy of .16, 64. f32 and small"),
    "over a store that is not fenced": (
        "smem_store(box, tile_zeros(16, 64, 4))\n    copy(desc, box, [16, 64], [0, 0], barrier=full[0])",
        emu.MissingProxyFence, "TMA load touches box"),
    "a pointer": ("copy(box, desc, [16, 64], [0, 0], barrier=full[0])", emu.EmulationError, "a descriptor and a shared buffer"),
    "a barrier array": ("copy(desc, box, [16, 64], [0, 0], barrier=full)", emu.BarrierMisuse, "copy on Barriers"),
}  # fmt: skip


@pytest.mark.parametrize("text, error, message", WRONG.values(), ids=WRONG)
def test_wrong_uses(load_text, text, error, message):
    x = torch.zeros(16, 64)
    start = """box = alloc([16, 64], F32)
    other = alloc([16, 64], F32)
    small = alloc([16, 32], F32)
    full = alloc_barriers(1, expect_bytes=4096)
    plain = alloc_barriers(1)
    """
    with pytest.raises(error, match=message):
        emu.launch(load_text(f"@jit\ndef f(desc):\n    {start}{text}\n").f, (1,), dict(desc=emu.TensorDescriptor(x, x.shape, x.stride(), (16, 64))))
