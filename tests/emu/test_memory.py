"""Global memory: addressing, masks, bounds, order between CTAs, unwritten workspace."""

import pytest
import torch

from tle_attn import emu


def kernel(load_text, body: str, *names: str):
    indented = "\n    ".join(body.strip().splitlines())
    return load_text(f"@jit\ndef f({', '.join(names)}):\n    i = vec_index(32)\n    {indented}\n").f


@pytest.mark.parametrize("kind, dtype", [("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32), ("fp8", torch.float8_e4m3fn)])
def test_a_copy_keeps_every_bit(load_text, generator, kind, dtype):
    x = torch.randn(32, generator=generator).to(dtype)
    out = torch.zeros(32).to(dtype)
    emu.launch(kernel(load_text, "store(out + i, load(x + i))", "x", "out"), (1,), dict(x=(f"*{kind}", x), out=(f"*{kind}", out)))
    assert torch.equal(out.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("kind, dtype", [("i32", torch.int32), ("i64", torch.int64), ("u8", torch.uint8)])
def test_integers(load_text, generator, kind, dtype):
    x = torch.randint(0, 200, (32,), generator=generator).to(dtype)
    out, first = torch.zeros(32, dtype=dtype), torch.zeros(1, dtype=torch.int64)
    entry = kernel(load_text, "store(out + i, load(x + i))\nstore(first, load(x + 3) + 1)", "x", "out", "first")
    emu.launch(entry, (1,), dict(x=(f"*{kind}", x), out=(f"*{kind}", out), first=("*i64", first)))
    assert torch.equal(out, x) and first.item() == x[3] + 1


def test_stores_convert_to_the_pointer_type(load_text, generator):
    x = torch.randn(32, generator=generator)
    out, ints = torch.zeros(32, dtype=torch.bfloat16), torch.zeros(32, dtype=torch.int32)
    entry = kernel(load_text, "store(out + i, load(x + i))\nstore(ints + i, load(x + i) * 100.0)", "x", "out", "ints")
    emu.launch(entry, (1,), dict(x=("*f32", x), out=("*bf16", out), ints=("*i32", ints)))
    assert torch.equal(out, x.bfloat16()) and torch.equal(ints, (x * 100).int())


def test_masks(load_text, generator):
    x = torch.randn(20, generator=generator)
    out, default = torch.full((32,), 9.0), torch.zeros(32)
    body = """
store(out + i, load(x + i, mask=i < 20, other=-1.0), mask=(i >= 2) & (i < 30))
store(default + i, load(x + i, mask=i < 20))
"""
    emu.launch(kernel(load_text, body, "x", "out", "default"), (1,), dict(x=("*f32", x), out=("*f32", out), default=("*f32", default)))
    assert torch.equal(out, torch.cat([torch.tensor([9.0, 9.0]), x[2:], torch.full((10,), -1.0), torch.tensor([9.0, 9.0])]))
    assert torch.equal(default[:20], x) and default[20:].isnan().all(), "elements without `other` are poison"


def test_scalar_masks_touch_nothing(load_text):
    x = torch.zeros(1)
    emu.launch(kernel(load_text, "store(x + 99, load(x + 77, mask=program_id(0) > 0, other=3.0), mask=program_id(0) > 0)", "x"), (1,), dict(x=("*f32", x)))
    assert x.item() == 0


def test_strided_views_are_accessed_from_their_first_element(load_text, generator):
    cache = torch.randn(4, 2, 8, 16, generator=generator)
    values = cache[:, 1]
    out = torch.zeros(32)
    emu.launch(kernel(load_text, "store(out + i, load(x + 3 * 256 + i))", "x", "out"), (1,), dict(x=("*f32", values), out=("*f32", out)))
    assert torch.equal(out, values[3].flatten()[:32])


def test_offsets_beyond_32_bits_need_as_int64(load_text):
    x = torch.empty(1).expand(1)
    args = dict(x=("*f32", x), n=("i32", 2**20))
    with pytest.raises(emu.OutOfBounds, match="32-bit integer overflow: 4294967296 at f:.*\n  widen an operand with as_int64"):
        emu.launch(kernel(load_text, "load(x + n * 4096)", "x", "n"), (1,), args)
    with pytest.raises(emu.OutOfBounds, match="x: element 4294967296 of 1"):
        emu.launch(kernel(load_text, "load(x + as_int64(n) * 4096)", "x", "n"), (1,), args)
    with pytest.raises(emu.OutOfBounds, match="32-bit integer overflow"):
        emu.launch(kernel(load_text, "load(x + (i + n) * 4096)", "x", "n"), (1,), args)


BOUNDS = {
    "load past the end": "load(x + i + 1)",
    "load before the start": "load(x + (i - 1))",
    "scalar load": "load(x + 32)",
    "store past the end": "store(x + i + 1, 0.0)",
    "scalar store": "store(x + (-1), 0.0)",
    "mask one too wide": "load(x + i + 8, mask=i < 25, other=0.0)",
    "past the view, inside of the storage": "load(view + i + 1)",
}


@pytest.mark.parametrize("body", BOUNDS.values(), ids=BOUNDS)
def test_bounds_are_those_of_the_tensor(load_text, body):
    storage = torch.zeros(128)
    with pytest.raises(emu.OutOfBounds, match="(x|view): element (32|-1) of 32 at f:"):
        emu.launch(kernel(load_text, body, "x", "view"), (1,), dict(x=("*f32", torch.zeros(32)), view=("*f32", storage[32:64])))


def test_a_store_of_different_values_to_one_element_is_a_race(load_text):
    args = lambda: dict(x=("*f32", torch.zeros(32)))  # noqa: E731
    with pytest.raises(emu.Race, match="different values to one element of x"):
        emu.launch(kernel(load_text, "store(x + i // 2, i.to(F32))", "x"), (1,), args())
    emu.launch(kernel(load_text, "store(x + i // 2, 5.0)", "x"), (1,), args())


RACES = {
    "write and write": "store(x, program_id(0))",
    "read before somebody's write": "if program_id(0) == 0:\n    store(x + i, i)\nelse:\n    load(x + i)",
    "read overlaps a written tile": "if program_id(0) == 0:\n    store(x + i, i)\nelse:\n    load(x + 31)",
    "tiles that overlap in one element": "store(x + program_id(0) * 31 + i, i)",
}


@pytest.mark.parametrize("body", RACES.values(), ids=RACES)
def test_unordered_accesses_of_ctas_are_races_in_every_schedule(load_text, body):
    entry = kernel(load_text, body, "x")
    for seed in range(6):
        with pytest.raises(emu.Race):
            emu.launch(entry, (2,), dict(x=("*i32", torch.zeros(64, dtype=torch.int32))), seed=seed)


def test_disjoint_accesses_are_no_race(load_text):
    body = "store(x + program_id(0) * 32 + i, i)\nload(x + program_id(0) * 32 + i)"
    x = torch.zeros(8 * 32, dtype=torch.int32)
    emu.launch(kernel(load_text, body, "x"), (8,), dict(x=("*i32", x)))
    assert torch.equal(x, torch.arange(32, dtype=torch.int32).repeat(8))


def test_one_storage_under_two_names_and_types_is_tracked_together(load_text):
    body = "if program_id(0) == 0:\n    store(a + i, 1.0)\nelse:\n    load(b + 127)"
    words = torch.zeros(32)
    for seed in range(4):
        with pytest.raises(emu.Race, match="(reads b without any order after|overwrites a while nothing orders it after) cta"):
            emu.launch(kernel(load_text, body, "a", "b"), (2,), dict(a=("*f32", words), b=("*u8", words.view(torch.uint8))), seed=seed)


def test_workspace_must_be_written_before_it_is_read(load_text):
    args = dict(x=("*f32", emu.workspace(torch.zeros(64))))
    with pytest.raises(emu.Unwritten, match=r"reads x\[32\], a workspace element that nothing has written, at f:"):
        emu.launch(kernel(load_text, "store(x + i, 1.0)\nload(x + i)\nload(x + 1 + i)", "x"), (1,), args)
    with pytest.raises(emu.Unwritten):
        emu.launch(kernel(load_text, "load(x)", "x"), (1,), dict(x=("*f32", torch.zeros(64))), workspace={"x"})


WRONG = {
    "a mask of numbers": ("load(x + i, mask=i)", "a condition is expected"),
    "a mask of another shape": ("load(x + i, mask=vec_index(16) > 1)", "a mask of shape"),
    "a mask tile for one element": ("load(x, mask=i > 1)", "for one element"),
    "a float offset": ("load(x + i * 1.0)", "a pointer plus a f32 tile"),
    "a float scalar offset": ("load(x + 1.0)", "pointer x plus float"),
    "load from a number": ("load(3)", "load from int"),
    "store to a number": ("store(3, 4)", "store to int"),
    "value of another shape": ("store(x + i, vec_index(16).to(F32))", "equal ranks|equal or 1"),
    "tile to one element": ("store(x, i.to(F32))", "store of a tile"),
    "cache modifier": ("load(x, cache_modifier='.lu')", "cache_modifier"),
}


@pytest.mark.parametrize("body, message", WRONG.values(), ids=WRONG)
def test_wrong_uses(load_text, body, message):
    with pytest.raises(emu.EmulationError, match=message):
        emu.launch(kernel(load_text, body, "x"), (1,), dict(x=("*f32", torch.zeros(64))))


def test_a_plain_poll_that_never_ends_is_reported(load_text, monkeypatch):
    monkeypatch.setattr("tle_attn.emu.machine.SPIN_LIMIT", 1000)
    with pytest.raises(emu.Deadlock, match="a poll uses load_acquire"):
        emu.launch(kernel(load_text, "while load(x) == 0:\n    pass", "x"), (1,), dict(x=("*i32", torch.zeros(1, dtype=torch.int32))))
