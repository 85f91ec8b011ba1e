"""WGMMA: products against torch, groups in flight, what may not be touched before the wait."""

import pytest
import torch

from tle_attn import emu

K = 64


def stored(x: torch.Tensor, name: str, kind: str) -> str:
    """Kernel text that puts tensor argument `name` of this shape into a shared tile of the same name."""
    m, n = x.shape
    return f"""
    r, c = tile_index({m}, {n}, 1)
    s_{name} = alloc([{m}, {n}], {kind})
    smem_store(s_{name}, load({name} + r[:, None] * {n} + c[None, :]))"""


@pytest.mark.parametrize("kind, dtype", [("BF16", torch.bfloat16), ("F16", torch.float16)])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("m, n", [(64, 32), (128, 64)])
def test_majors(load_text, generator, kind, dtype, trans_a, trans_b, m, n):
    a, b = torch.randn(m, K, generator=generator).to(dtype), torch.randn(K, n, generator=generator).to(dtype)
    out = torch.zeros(2, m, n)
    given = dict(a=a.T.contiguous() if trans_a else a, b=b.T.contiguous() if trans_b else b)
    text = f"""
@jit
def f(a, b, out):{stored(given["a"], "a", kind)}{stored(given["b"], "b", kind)}
    fence_async()
    first = wgmma_wait(0, wgmma(s_a, s_b, trans_a={trans_a}, trans_b={trans_b}))
    second = wgmma_wait(0, wgmma(s_a, s_b, first + 1.0, trans_a={trans_a}, trans_b={trans_b}))
    at = rows(first)[:, None] * {n} + cols(first)[None, :]
    store(out + at, first)
    store(out + {m * n} + at, second)
"""
    name = kind.lower()
    emu.launch(load_text(text).f, (1,), dict(a=(f"*{name}", given["a"]), b=(f"*{name}", given["b"]), out=("*f32", out)))
    product = a.double() @ b.double()
    torch.testing.assert_close(out.double(), torch.stack([product, 2 * product + 1]), rtol=1e-5, atol=1e-4)


def test_fp8_and_register_operands(load_text, generator):
    a, b = (torch.randn(64, K, generator=generator).to(torch.float8_e4m3fn) for _ in range(2))
    out = torch.zeros(2, 64, 64)
    text = f"""
@jit
def f(a, b, out):{stored(a, "a", "FP8")}{stored(b, "b", "FP8")}
    fence_async()
    both = wgmma_wait(0, wgmma(s_a, s_b, trans_b=True))
    p = register_operand(smem_load(s_a), both)
    at = rows(both)[:, None] * 64 + cols(both)[None, :]
    store(out + at, both)
    store(out + 4096 + at, wgmma_wait(0, wgmma(p, s_b, trans_b=True)))
"""
    emu.launch(load_text(text).f, (1,), dict(a=("*fp8", a), b=("*fp8", b), out=("*f32", out)))
    product = (a.double() @ b.double().T).float()
    torch.testing.assert_close(out, torch.stack([product, product]))


GROUPS = """
@jit
def f(x, out):
    tiles = alloc([2, 64, 64], BF16)
    r, c = tile_index(64, 64, 8)
    a = load(x + r[:, None] * 64 + c[None, :])
    smem_store(tiles.slot(0), a)
    smem_store(tiles.slot(1), a)
    fence_async()
    one = wgmma(tiles.slot(0), tiles.slot(0))
    two = wgmma(tiles.slot(1), tiles.slot(1), one)
    one = wgmma_wait(1, one)
    smem_store(tiles.slot(0), one.to(BF16))
    one, two = wgmma_wait(0, (one, two))
    store(out + r[:, None] * 64 + c[None, :], two)
"""


def test_groups_retire_in_order(load_text, generator):
    x = torch.randn(64, 64, generator=generator).bfloat16()
    out = torch.zeros(64, 64)
    stats = emu.launch(load_text(GROUPS).f, (1,), dict(x=("*bf16", x), out=("*f32", out)))
    torch.testing.assert_close(out, 2 * (x.float() @ x.float()), rtol=1e-5, atol=1e-4)
    assert stats.wgmmas == 2


@pytest.mark.parametrize("old, new, error, message", [
    ("one = wgmma_wait(1, one)", "one = wgmma_wait(2, one)", emu.UseBeforeWait, "used before wgmma_wait at f:"),
    ("    smem_store(tiles.slot(0), one.to(BF16))\n", "    smem_store(tiles.slot(1), one.to(BF16))\n", emu.Race, "no barrier orders it after f's WGMMA"),
    ("one, two = wgmma_wait(0, (one, two))", "one, two = wgmma_wait(1, (one, two))", emu.UseBeforeWait, "used before wgmma_wait"),
    ("    store(out", "    three = wgmma(tiles.slot(1), tiles.slot(1))\n    store(out", emu.UseBeforeWait, "f ended with 1 WGMMA group"),
    ("two = wgmma(tiles.slot(1), tiles.slot(1), one)", "two = wgmma(one, tiles.slot(1))", emu.UseBeforeWait, "used before wgmma_wait"),
    ("two = wgmma(tiles.slot(1), tiles.slot(1), one)", "two = wgmma(tiles.slot(1), tiles.slot(1), one + 1.0)", emu.UseBeforeWait, "issued at f:"),
    ("two = wgmma(tiles.slot(1), tiles.slot(1), one)", "two = maximum(one, 0.0)", emu.UseBeforeWait, "used before wgmma_wait"),
    ("two = wgmma(tiles.slot(1), tiles.slot(1), one)", "two = where(r[:, None] > c[None, :], one, 0.0)", emu.UseBeforeWait, "used before wgmma_wait"),
    ("two = wgmma(tiles.slot(1), tiles.slot(1), one)", "two = exp2(one)", emu.UseBeforeWait, "used before wgmma_wait"),
    ("two = wgmma(tiles.slot(1), tiles.slot(1), one)", "two = reduce_max(one, 1)", emu.UseBeforeWait, "used before wgmma_wait"),
    ("two = wgmma(tiles.slot(1), tiles.slot(1), one)", "two = trans(one)", emu.UseBeforeWait, "used before wgmma_wait"),
    ("    one = wgmma_wait(1, one)\n    smem_store(tiles.slot(0), one.to(BF16))\n",
     "    store(out + r[:, None] * 64 + c[None, :], one)\n", emu.UseBeforeWait, "used before wgmma_wait"),
])  # fmt: skip
def test_broken_groups(load_text, generator, old, new, error, message):
    assert old in GROUPS
    x = torch.randn(64, 64, generator=generator).bfloat16()
    with pytest.raises(error, match=message):
        emu.launch(load_text(GROUPS.replace(old, new)).f, (1,), dict(x=("*bf16", x), out=("*f32", torch.zeros(64, 64))))


WRONG = {
    "inner sides": ("wgmma(a, narrow)", "M in 64s, N in 8s"),
    "M of 32": ("wgmma(short, narrow)", "M in 64s"),
    "types": ("wgmma(a, half)", "bf16, f16 or fp8 on both sides"),
    "fp32 operands": ("wgmma(words, words)", "bf16, f16 or fp8 on both sides"),
    "fp8 that is not K-contiguous": ("wgmma(bytes_, bytes_)", "K-contiguous"),
    "accumulator shape": ("wgmma(a, a, mma_zeros(64, 32, BF16))", r"accumulator \[64, 32\]"),
    "accumulator type": ("wgmma(a, a, mma_zeros(64, 64, BF16).to(BF16))", r"accumulator \[64, 64\] bf16"),
    "b in registers": ("wgmma(a, mma_zeros(64, 64, BF16).to(BF16))", "lie in wgmma/TMA buffers"),
    "a plain buffer": ("wgmma(plain, a)", "lie in wgmma/TMA buffers"),
    "a ring": ("wgmma(ring, a)", "take slots of rings"),
    "transposed register tile": ("wgmma(mma_zeros(64, 64, BF16).to(BF16), a, trans_a=True)", "transpose the register tile"),
}


@pytest.mark.parametrize("call, message", WRONG.values(), ids=WRONG)
def test_wrong_uses(load_text, call, message):
    module = load_text(f"""
@jit
def f():
    a = alloc([64, 64], BF16)
    ring = alloc([2, 64, 64], BF16)
    narrow = alloc([32, 16], BF16)
    short = alloc([32, 32], BF16)
    half = alloc([64, 64], F16)
    words = alloc([64, 64], F32)
    bytes_ = alloc([64, 64], FP8)
    plain = alloc_plain([64, 64], BF16)
    {call}
""")
    with pytest.raises(emu.EmulationError, match=message):
        emu.launch(module.f, (1,), {})


def test_a_role_of_one_warp_has_no_wgmma(load_text):
    module = load_text("""
@jit
def f():
    a = alloc([64, 64], BF16)
    smem_store(a, mma_zeros(64, 64, BF16).to(BF16))
    fence_async()
    wgmma(a, a)
""")
    with pytest.raises(emu.EmulationError, match="f, which has 32 threads: a warpgroup has 128"):
        emu.launch(module.f, (1,), {}, threads=32)
