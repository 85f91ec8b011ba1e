"""Shared memory: rings, byte order of tiles, aliases, order of accesses, poison, proxy fences."""

import pytest
import torch

from tle_attn import emu

PRODUCER_CONSUMER = """
@jit
def produce(x, box, full, empty, n):
    for t in range(n):
        barrier_wait(empty[t % 2], t // 2)
        smem_store(box.slot(t % 2), load(x + t * 128 + vec_index(128)))
        barrier_arrive(full[t % 2])


@jit
def consume(out, box, full, empty, n):
    for t in range(n):
        barrier_wait(full[t % 2], t // 2)
        value = smem_load(box.slot(t % 2))
        barrier_arrive(empty[t % 2])
        store(out + t * 128 + vec_index(128), value)


@jit
def ring(x, out, n):
    box = alloc_plain([2, 128], I32)
    full = alloc_barriers(2)
    empty = alloc_barriers(2, init=READY)
    warp_specialize([(consume, (out, box, full, empty, n)), (produce, (x, box, full, empty, n))], [4], [24])
"""


def run_ring(load_text, text: str, seed: int) -> None:
    x, out = torch.arange(7 * 128, dtype=torch.int32), torch.zeros(7 * 128, dtype=torch.int32)
    emu.launch(load_text(text).ring, (1,), dict(x=("*i32", x), out=("*i32", out), n=("i32", 7)), seed=seed)
    assert torch.equal(out, x)


def test_a_ring_of_plain_slots(load_text):
    for seed in range(10):
        run_ring(load_text, PRODUCER_CONSUMER, seed)


@pytest.mark.parametrize("old, new, allowed", [
    ("        barrier_wait(full[t % 2], t // 2)\n", "", (emu.Race, emu.Unwritten)),
    ("        barrier_wait(empty[t % 2], t // 2)\n", "", (emu.Race, emu.BarrierMisuse)),
    ("        value = smem_load(box.slot(t % 2))\n        barrier_arrive(empty[t % 2])\n",
     "        barrier_arrive(empty[t % 2])\n        value = smem_load(box.slot(t % 2))\n", emu.Race),
    ("box.slot(t % 2), load", "box.slot((t + 1) % 2), load", (emu.Race, emu.Unwritten)),
    ("empty = alloc_barriers(2, init=READY)", "empty = alloc_barriers(2, 2, init=READY)", emu.Deadlock),
])  # fmt: skip
def test_broken_rings_are_reported_in_every_schedule(load_text, old, new, allowed):
    assert old in PRODUCER_CONSUMER
    for seed in range(8):
        with pytest.raises(allowed):
            run_ring(load_text, PRODUCER_CONSUMER.replace(old, new), seed)


def body(load_text, text: str, **args):
    lines = "\n    ".join(text.strip().splitlines())
    emu.launch(load_text(f"@jit\ndef f({', '.join(args)}):\n    {lines}\n").f, (1,), args)


@pytest.mark.parametrize("columns, kind, dtype", [
    (128, "bf16", torch.bfloat16), (64, "bf16", torch.bfloat16), (32, "f32", torch.float32), (256, "fp8", torch.float8_e4m3fn),
])  # fmt: skip
def test_an_alias_sees_column_blocks_of_128_bytes(load_text, generator, columns, kind, dtype):
    """Slot (s * H + h) * P + j of the alias is column block h of page j of stage s."""
    stages, rows, page = 2, 64, 16
    width = min(columns, 128 // dtype.itemsize)
    blocks, pages = columns // width, rows // page
    x = torch.randn(stages, rows, columns, generator=generator).to(dtype)
    out = torch.zeros(stages * blocks * pages, page, width).to(dtype)
    text = f"""
ring = alloc([{stages}, {rows}, {columns}], {kind.upper()})
pages = alias(ring, [{stages * blocks * pages}, {page}, {width}])
r, c = tile_index({rows}, {columns}, 1)
for s in range({stages}):
    smem_store(ring.slot(s), load(x + (s * {rows} + r[:, None]) * {columns} + c[None, :]))
r, c = tile_index({page}, {width}, 1)
for i in range({stages * blocks * pages}):
    store(out + (i * {page} + r[:, None]) * {width} + c[None, :], smem_load(pages.slot(i)))
"""
    body(load_text, text, x=(f"*{kind}", x), out=(f"*{kind}", out))
    expected = x.view(torch.uint8).reshape(stages, pages, page, blocks, width * dtype.itemsize).permute(0, 3, 1, 2, 4)
    assert torch.equal(out.view(torch.uint8).flatten(), expected.flatten())


def test_tiles_and_vectors_round_trip(load_text, generator):
    x, v = torch.randn(64, 64, generator=generator), torch.randn(64, generator=generator)
    out = torch.zeros(64, 64)
    text = """
table = alloc_plain([64, 64], F32)
tile = alloc([64, 64], F32)
down = alloc_plain([64], F32)
along = alloc_plain([2, 64], F32)
r, c = tile_index(64, 64, 4)
a = load(x + r[:, None] * 64 + c[None, :])
smem_store(table, a)
smem_store(tile, a)
smem_store(down, load(v + vec_index(64)))
smem_store(along.slot(1), load(v + vec_index(64)) * 2.0)
b = smem_load(table) + smem_load(tile)
b = b * smem_load_rows(down, b)[:, None] + smem_load_cols(along.slot(1), b)[None, :]
store(out + r[:, None] * 64 + c[None, :], b)
"""
    body(load_text, text, x=("*f32", x), v=("*f32", v), out=("*f32", out))
    torch.testing.assert_close(out, 2 * x * v[:, None] + 2 * v[None, :])


def test_shared_memory_is_added_up(load_text):
    module = load_text("@jit\ndef f():\n    a = alloc([3, 64, 128], BF16)\n    b = alloc_plain([40], I32)\n    c = alias(a, [6, 64, 64])\n")
    assert emu.launch(module.f, (2,), {}).shared_bytes == 3 * 64 * 128 * 2 + 160


WRONG = {
    "read of a slot that nothing wrote": ("smem_load(ring.slot(1))", emu.Unwritten, r"f's load reads ring\[1\], which nothing has written, at f:"),
    "slot past the end": ("ring.slot(3)", emu.OutOfBounds, r"slot 3 of ring \(3 slots\)"),
    "negative slot": ("ring.slot(program_id(0) - 1)", emu.OutOfBounds, "slot -1 of ring"),
    "a ring as a tile": ("smem_load(ring)", emu.EmulationError, "a .rows, cols. buffer or slot"),
    "a store of a whole ring": ("smem_store(ring, ones)", emu.EmulationError, "smem_store of a tile"),
    "slot of a tile": ("ring.slot(0).slot(0)", emu.EmulationError, "which is no ring"),
    "another shape": ("smem_store(ring.slot(0), mma_zeros(64, 64, BF16).to(BF16))", emu.EmulationError, r"smem_store of a tile \[64, 64\]"),
    "another type": ("smem_store(ring.slot(0), ones.to(F16))", emu.EmulationError, "convert it with .to"),
    "unequal vector": ("smem_load_rows(vector, ones)", emu.EmulationError, "a plain vector of 64"),
    "a tile of odd width": ("alloc([64, 48], BF16)", emu.EmulationError, "no power of two"),
    "a tile of short rows": ("alloc([64, 8], BF16)", emu.EmulationError, "at least 32 bytes"),
    "a four-dimensional ring": ("alloc([2, 2, 64, 64], BF16)", emu.EmulationError, "a tile .rows, cols. or a ring"),
    "alias that is too large": ("alias(ring, [7, 64, 64])", emu.OutOfBounds, "alias of ring"),
    "alias after an access": ("smem_store(ring.slot(0), ones)\nalias(ring, [6, 64, 64])", emu.EmulationError, "after its first access"),
    "alias of a plain buffer": ("alias(vector, [1, 8, 8])", emu.EmulationError, "a wgmma/TMA buffer as a ring"),
    "data read through another swizzle": ("pieces = alias(ring, [3, 256, 32])\nsmem_store(ring.slot(0), ones)\nsmem_load(pieces.slot(0))", emu.EmulationError,
                                          "reads pieces.0. as 64-byte swizzled blocks, but it was written as 128-byte swizzled blocks"),
}  # fmt: skip


@pytest.mark.parametrize("text, error, message", WRONG.values(), ids=WRONG)
def test_wrong_uses(load_text, text, error, message):
    start = "ring = alloc([3, 64, 128], BF16)\nvector = alloc_plain([32], F32)\nones = (mma_zeros(64, 128, BF16) + 1.0).to(BF16)\n"
    with pytest.raises(error, match=message):
        body(load_text, start + text)


def test_an_allocation_inside_a_role_is_reported(load_text):
    module = load_text("""
@jit
def work():
    role_sync()


@jit
def grab():
    box = alloc_plain([32], F32)


@jit
def f():
    warp_specialize([(work, ()), (grab, ())], [1], [24])
""")
    with pytest.raises(emu.EmulationError, match="an allocation inside a role at grab:"):
        emu.launch(module.f, (1,), {})


OVERLAP = """
@jit
def first(ring, done):
    barrier_wait(done[0], 0)
    tile = smem_load(ring.slot(0))


@jit
def second(pieces, done):
    r, c = tile_index(16, 64, 8)
    for i in range(8):
        smem_store(pieces.slot(i), (r[:, None] + c[None, :]).to(BF16))
    barrier_arrive(done[0])
    {late}


@jit
def f():
    ring = alloc([1, 64, 128], BF16)
    pieces = alias(ring, [8, 16, 64])
    done = alloc_barriers(1)
    warp_specialize([(first, (ring, done)), (second, (pieces, done))], [4], [24])
"""


def test_accesses_through_an_alias_are_ordered_per_smallest_slot(load_text):
    right = load_text(OVERLAP.format(late="role_sync()")).f
    late = load_text(OVERLAP.format(late="smem_store(pieces.slot(5), (r[:, None] + c[None, :]).to(BF16))")).f
    for seed in range(8):
        emu.launch(right, (1,), {}, seed=seed)
        with pytest.raises(emu.Race, match="pieces.5.|ring.0."):
            emu.launch(late, (1,), {}, seed=seed)


def test_reading_a_tile_of_which_a_piece_is_missing(load_text):
    text = OVERLAP.format(late="role_sync()").replace("range(8)", "range(7)")
    with pytest.raises(emu.Unwritten, match=r"reads ring\[0\]"):
        emu.launch(load_text(text).f, (1,), {})


FENCES = """
@jit
def f(order: constexpr):
    a = alloc([64, 64], BF16)
    {0}
    smem_store(a, mma_zeros(64, 64, BF16).to(BF16))
    {1}
    o = wgmma_wait(0, wgmma(a, a))
"""


def test_wgmma_needs_a_fence_after_the_store(load_text):
    emu.launch(load_text(FENCES.format("pass", "fence_async()").replace("order: constexpr", "")).f, (1,), {})
    for before, after in (("pass", "pass"), ("fence_async()", "role_sync()")):
        with pytest.raises(emu.MissingProxyFence, match="f's WGMMA touches a without fence_async after the generic store"):
            emu.launch(load_text(FENCES.format(before, after).replace("order: constexpr", "")).f, (1,), {})
