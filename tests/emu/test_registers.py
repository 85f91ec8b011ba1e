"""Tile operations against torch, through a kernel that loads, computes and stores."""

import re

import pytest
import torch

from tle_attn import emu

M, N = 16, 32
TYPES = dict(i32=torch.int32, i64=torch.int64, u8=torch.uint8, f32=torch.float32, bf16=torch.bfloat16, f16=torch.float16, fp8=torch.float8_e4m3fn)


def evaluate(load_text, expression: str, shape: tuple[int, ...], result: str = "f32", **inputs: torch.Tensor | float) -> torch.Tensor:
    """The value of `expression` over tiles (or vectors, or scalars) that hold the inputs."""
    lines, args = [], {}
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            args[name] = ("i32" if isinstance(value, int) else "f32", value)
            continue
        kind = next(kind for kind, dtype in TYPES.items() if dtype == value.dtype)
        args[f"p_{name}"] = (f"*{kind}", value)
        offsets = {1: "vec_index({0})", 2: "tile_index({0}, {1}, 1)[0][:, None] * {1} + tile_index({0}, {1}, 1)[1][None, :]"}[value.ndim].format(*value.shape)
        lines.append(f"    {name} = load(p_{name} + {offsets})")
    target = {
        0: "out",
        1: f"out + vec_index({shape[0] if shape else 0})",
        2: "out + tile_index({0}, {1}, 1)[0][:, None] * {1} + tile_index({0}, {1}, 1)[1][None, :]".format(*(*shape, 0, 0)),
    }[len(shape)]
    text = "\n".join(["@jit", f"def f(out, {', '.join(args)}):", *lines, f"    store({target}, {expression})"])
    out = torch.zeros(shape or (1,), dtype=TYPES[result])
    emu.launch(load_text(text).f, (1,), dict(out=(f"*{result}", out), **args))
    return out if shape else out[0]


def tile(generator: torch.Generator, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(M, N, generator=generator).to(dtype)


FLOATS = {
    "x + y": lambda x, y: x + y,
    "x - 2.5": lambda x, y: x - 2.5,
    "1.0 - x": lambda x, y: 1.0 - x,
    "x * y": lambda x, y: x * y,
    "x / y": lambda x, y: x / y,
    "-x": lambda x, y: -x,
    "maximum(x, y)": torch.maximum,
    "minimum(x, 0.25)": lambda x, y: x.clamp(max=0.25),
    "exp2(x)": lambda x, y: torch.exp2(x),
    "log2(x * x)": lambda x, y: torch.log2(x * x),
    "fdiv(1.0, x)": lambda x, y: 1 / x,
    "where(x > y, x, 0.0)": lambda x, y: torch.where(x > y, x, 0.0),
    "where((x > 0.0) & (y <= x), 1.0, y)": lambda x, y: torch.where((x > 0) & (y <= x), 1.0, y),
    "where((x < 0.0) | (y == x), x, y)": lambda x, y: torch.where((x < 0) | (y == x), x, y),
    "(x != y).to(F32)": lambda x, y: (x != y).float(),
    "x.reshape([M, 2, N // 2]).permute((0, 2, 1)).reshape([M, N])": lambda x, y: x.reshape(M, 2, N // 2).permute(0, 2, 1).reshape(M, N),
    "x * reduce_max(y, 1)[:, None] + reduce_sum(y, 0)[None, :]": lambda x, y: x * y.amax(1)[:, None] + y.sum(0)[None, :],
    "x + full_rows(x, 2.0)[:, None] * full_cols(y, 3.0)[None, :]": lambda x, y: x + 6,
    "x + like_rows(reduce_max(y, 1), x)[:, None]": lambda x, y: x + y.amax(1)[:, None],
    "x + move_cols(reduce_max(y, 0), x)[None, :]": lambda x, y: x + y.amax(0)[None, :],
    "x + move_rows(reduce_max(y, 1), x)[:, None] + like_cols(reduce_max(y, 0), x)[None, :]": lambda x, y: x + y.amax(1)[:, None] + y.amax(0)[None, :],
    "x + rows(x)[:, None] * cols(x)[None, :]": lambda x, y: x + torch.arange(M)[:, None] * torch.arange(N)[None, :],
    "tile_zeros(M, N, 4) + x": lambda x, y: x,
    "trans(trans(x) * 2.0)": lambda x, y: 2 * x,
    "x.to(BF16).to(F32)": lambda x, y: x.bfloat16().float(),
    "x.to(FP8).to(F32)": lambda x, y: x.to(torch.float8_e4m3fn).float(),
    "x.to(F16).to(F32)": lambda x, y: x.half().float(),
}


@pytest.mark.parametrize("expression", FLOATS)
def test_float_tiles(load_text, generator, expression):
    x, y = tile(generator), tile(generator)
    out = evaluate(load_text, re.sub(r"\b[MN]\b", lambda side: str({"M": M, "N": N}[side[0]]), expression), (M, N), x=x, y=y)
    torch.testing.assert_close(out, FLOATS[expression](x, y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_round_after_each_operation(load_text, generator, dtype):
    x, y = tile(generator, dtype), tile(generator, dtype)
    name = "bf16" if dtype is torch.bfloat16 else "f16"
    out = evaluate(load_text, "x * y + 1.0", (M, N), name, x=x, y=y)
    assert torch.equal(out, x * y + 1)
    assert torch.equal(evaluate(load_text, "x * y.to(F32)", (M, N), x=x, y=y), x.float() * y.float())


def test_literals_take_the_type_of_the_tile(load_text, generator):
    x = tile(generator, torch.bfloat16)
    tenth = torch.tensor(0.1, dtype=torch.bfloat16)
    assert torch.equal(evaluate(load_text, "x * 0.1", (M, N), "bf16", x=x), x * tenth)
    assert torch.equal(evaluate(load_text, "where(x > 0.0, x, 0.1)", (M, N), "bf16", x=x), torch.where(x > 0, x, tenth))


def test_fp8_tiles_can_be_selected(load_text, generator):
    x = tile(generator).to(torch.float8_e4m3fn)
    out = evaluate(load_text, "where((rows(x) < 5)[:, None], x, 0.0)", (M, N), "fp8", x=x)
    assert torch.equal(out.float(), torch.where(torch.arange(M)[:, None] < 5, x.float(), 0))


def test_integer_tiles_truncate(load_text, generator):
    x = torch.randint(-60, 60, (M, N), generator=generator, dtype=torch.int32)
    y = torch.randint(1, 9, (M, N), generator=generator, dtype=torch.int32)
    quotient = torch.div(x, y, rounding_mode="trunc")
    assert torch.equal(evaluate(load_text, "x // y", (M, N), "i32", x=x, y=y), quotient)
    assert torch.equal(evaluate(load_text, "x % y", (M, N), "i32", x=x, y=y), x - quotient * y)
    assert torch.equal(evaluate(load_text, "(x & 7) | (y << 4) ^ (x >> 1)", (M, N), "i32", x=x, y=y), (x & 7) | (y << 4) ^ (x >> 1))
    assert torch.equal(evaluate(load_text, "x * 0.5", (M, N), x=x), x * 0.5)
    assert torch.equal(evaluate(load_text, "x / y", (M, N), x=x, y=y), x / y)


def test_vectors_and_scalars(load_text, generator):
    v = torch.randint(-99, 99, (64,), generator=generator, dtype=torch.int32)
    f = torch.randn(64, generator=generator)
    assert torch.equal(evaluate(load_text, "cumsum(v)", (64,), "i32", v=v), v.cumsum(0).int())
    assert torch.equal(evaluate(load_text, "vec_index(64) + v", (64,), "i32", v=v), torch.arange(64) + v)
    assert evaluate(load_text, "reduce_max(v, 0)", (), "i32", v=v) == v.max()
    assert evaluate(load_text, "reduce_sum(v, 0)", (), "i32", v=v) == v.sum()
    torch.testing.assert_close(evaluate(load_text, "reduce_sum(f, 0)", (), f=f), f.sum())
    assert evaluate(load_text, "reduce_max(f, 0)", (), f=f) == f.max()
    assert evaluate(load_text, "where(reduce_max(f, 0) > a, 1, 2)", (), "i32", f=f, a=-1e9) == 1
    assert evaluate(load_text, "cdiv(n, 64) + maximum(n, 3) * minimum(n, 100)", (), "i32", n=130) == 3 + 130 * 100
    assert evaluate(load_text, "as_int64(n) * n", (), "i64", n=2**30) == 2**60
    assert evaluate(load_text, "n.to(F32) * a", (), n=7, a=0.5) == 3.5


def test_a_scale_argument_is_fp32(load_text, generator):
    x = tile(generator)
    assert torch.equal(evaluate(load_text, "x * (a * a)", (M, N), x=x, a=0.1), x * (torch.tensor(0.1) * torch.tensor(0.1)))


def test_the_maximum_ignores_one_nan(load_text):
    x = torch.tensor([[float("nan"), 1.0] * (N // 2)] * M)
    assert torch.equal(evaluate(load_text, "maximum(x, 0.5)", (M, N), x=x), torch.tensor([[0.5, 1.0] * (N // 2)] * M))
    assert torch.equal(evaluate(load_text, "reduce_max(x, 1)", (M,), x=x), torch.ones(M))


def test_masks_of_infinity(load_text, generator):
    """The empty-row idiom of the online softmax has no NaN."""
    x = torch.full((M, N), float("-inf"))
    out = evaluate(load_text, "exp2(x - where(reduce_max(x, 1) > float('-inf'), reduce_max(x, 1), 0.0)[:, None])", (M, N), x=x)
    assert (out == 0).all()


def test_mma_zeros_and_register_operand(load_text):
    module = load_text("""
@jit
def f(out):
    o = mma_zeros(64, 16, BF16)
    p = register_operand((o + 1.0).to(BF16), o)
    store(out + rows(p)[:, None] * 16 + cols(p)[None, :], p)
""")
    out = torch.zeros(64, 16, dtype=torch.bfloat16)
    emu.launch(module.f, (1,), dict(out=("*bf16", out)))
    assert (out == 1).all()


WRONG = {
    "a tile as a condition": ("1 if x > 0.0 else 2", "used as a condition"),
    "an indexed tile": ("x[0]", "can only be indexed with None"),
    "fp8 arithmetic": ("x.to(FP8) * 2.0", "convert it with .to first"),
    "float floor division": ("x // 2.0", "floordiv on float tiles"),
    "division by zero": ("i // (i - i)", "division by zero"),
    "int tile overflow": ("i * 1000000000", "32-bit integer overflow"),
    "sum overflow": ("reduce_sum(i * 100000000, 0)", "32-bit integer overflow"),
    "unequal shapes": ("x + trans(x)", "sides that are equal or 1"),
    "unequal ranks": ("x + reduce_max(x, 0)", "equal ranks"),
    "a mask of another shape": ("where(i > 0, x, 0.0)", "equal ranks"),
    "vector of another length": ("x + like_cols(i, x)[None, :]", "a vector of shape"),
    "exp2 of bf16": ("exp2(x.to(BF16))", "computes it in fp32"),
    "reduction axis": ("reduce_max(i, 1)", "along axis 1"),
    "cumsum of floats": ("cumsum(reduce_max(x, 0))", "an int32 vector is expected"),
    "reshape": ("x.reshape([3, 5])", "reshape of"),
    "no power of two": ("vec_index(48)", "no power of two"),
    "uneven vectors": ("tile_index(16, 8, 16)", "no multiple of"),
    "accumulator rows": ("mma_zeros(32, 8, BF16)", "64 rows a warpgroup"),
    "operand of fp32": ("register_operand(x, x)", "bf16, f16 or fp8"),
    "where on a number": ("where(3, x, x)", "where on a condition of type int"),
    "transposed vector": ("trans(i)", "trans of a tile"),
    "as_int64 of floats": ("as_int64(x)", "as_int64 of a f32 tile"),
}


@pytest.mark.parametrize("expression, message", WRONG.values(), ids=WRONG)
def test_wrong_uses_name_the_line(load_text, generator, expression, message):
    i = torch.arange(M, dtype=torch.int32) + 5
    with pytest.raises(emu.EmulationError, match=message) as report:
        evaluate(load_text, expression, (M, N), x=tile(generator), i=i)
    assert " at f:" in str(report.value)


def test_operations_outside_of_a_launch_say_so():
    with pytest.raises(emu.EmulationError, match="outside of emu.launch"):
        emu.ops.program_id(0)
