"""FP8 V of prefill, transposed: every byte at its place, the product in the order of the output, and what the microkernel compiles to."""

import pytest
import torch

from tests.components.products import product_rms
from tle_attn.components.v_operand.fp8_transpose import Fp8Transpose
from tle_attn.errors import SpecError
from tle_attn.runtime.executors import compile_kernel
from tle_attn.spec import Argument, Constant, DType, Kernel, Problem
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

E4M3 = torch.float8_e4m3fn
TRANSPOSE = """
@jit
def test(args):
    v_tile = alloc([TILE, HEAD_DIM], FP8)
    vt_tile = alloc([HEAD_DIM, TILE], FP8)
    i, j = tile_index(TILE, HEAD_DIM, 16)
    smem_store(v_tile, load(args.v + (i * HEAD_DIM)[:, None] + j[None, :]))
    role_sync()
    smem_store(vt_tile, transposed(v_tile, args.valid))
    role_sync()
    v = smem_load(vt_tile)
    store(args.vt + (rows(v) * TILE)[:, None] + cols(v)[None, :], v)
"""
PRODUCT = """
@jit
def test(args):
    v_tile = alloc([TILE, HEAD_DIM], FP8)
    vt_ring = alloc([2, HEAD_DIM, TILE], FP8)
    if FP32_SUMS:
        v_tiles = alias(vt_ring, [4, HEAD_DIM // 2, TILE])
    else:
        v_tiles = vt_ring
    i, j = tile_index(TILE, HEAD_DIM, 16)
    s = mma_zeros(64, TILE, FP8)
    o = no_output()
    for n in range(2):
        smem_store(v_tile, load(args.v + ((n * TILE + i) * HEAD_DIM)[:, None] + j[None, :]))
        role_sync()
        smem_store(vt_ring.slot(n), transposed(v_tile, args.valid))
        fence_async()
        role_sync()
        p = load(args.p + ((n * 64 + rows(s)) * TILE)[:, None] + cols(s)[None, :])
        operand = p_operand(p, o[0])
        product = begin_pv(operand, v_tiles, n, o)
        top = load(args.top + n * 64 + rows(o[0]))
        o, product = go_on_with_pv(operand, v_tiles, n, o, product, top)
        o = end_pv(o, product, top)
        o = rescaled(o, load(args.alpha + n * 64 + rows(s)))
    out = output_rows(o)
    store(args.o + (rows(out) * HEAD_DIM)[:, None] + cols(out)[None, :], out)
"""


def kernel_of(text: str, problem: Problem, sums: str = "tensor_cores", *, scaled: bool = False, **pointers: str) -> Kernel:
    arguments = [Argument("valid", "i32", "keys that hold something"), *(Argument(name, kind, "") for name, kind in pointers.items())]
    constants = {"VALUE_SCALES": Constant(scaled, "")}
    return mini_kernel(text, Fp8Transpose(sums=sums), problem=problem, arguments=arguments, constants=constants, companions=prefill_companions(problem))


def keys_of(dim: int) -> int:
    """Keys of a tile."""
    return Problem(head_dim=dim).prefill_keys


def places(dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row of head element d and column t' of key t: even elements above odd ones, and bits (b3 b2 b1 b0) of a key's number as (b2 b1 b3 b0)."""
    d, t = torch.arange(dim), torch.arange(keys_of(dim))
    return (d & 1) * dim // 2 + d // 2, t // 16 * 16 + 4 * (t >> 1 & 3) + 2 * (t >> 3 & 1) + (t & 1)


def check_bytes(v: torch.Tensor, valid: int, target: str, device: str) -> None:
    """v: bytes [keys, dim]."""
    keys, dim = v.shape
    rows, columns = places(dim)
    expected = torch.zeros(dim, keys, dtype=torch.uint8)
    expected[rows[:, None], columns[None, :valid]] = v[:valid].T
    vt = torch.full((dim, keys), 0x55, dtype=torch.uint8, device=device).view(E4M3)
    kernel = kernel_of(TRANSPOSE, Problem(dtype=DType.FP8, head_dim=dim), v="*fp8", vt="*fp8")
    run_kernel(kernel, {"v": v.to(device).view(E4M3), "vt": vt, "valid": valid}, target=target)
    assert torch.equal(vt.cpu().view(torch.uint8), expected)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("what", ["token", "dim", "random"])
def test_17_every_byte_at_its_place(target, device, dim, what):
    """V's bytes are the index of their key, then that of their head element: which key, and which element, every byte of V^T came from."""
    shape = (keys_of(dim), dim)
    key, element = torch.arange(shape[0])[:, None].expand(shape), torch.arange(dim)[None, :].expand(shape)
    v = {"token": key, "dim": element, "random": torch.randint(0, 127, shape) + 128 * torch.randint(0, 2, shape)}[what]
    check_bytes(v.to(torch.uint8).contiguous(), shape[0], target, device)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("valid", [1, 2, 9, 15, 16, 17, 64, 100, 127, 500])
def test_keys_past_the_end_are_zero(target, device, dim, valid):
    """Whatever they hold; the mainloop passes more than its keys for a tile that is full."""
    v = torch.randint(0, 120, (keys_of(dim), dim), dtype=torch.uint8)
    v[valid:] = 0x7F  # NaN
    check_bytes(v, min(valid, len(v)), target, device)


@pytest.mark.parametrize("dim,sums", [(64, "tensor_cores"), (64, "fp32"), (128, "tensor_cores"), (128, "fp32"), (128, "scaled"), (256, "tensor_cores")])
@pytest.mark.parametrize("valid", [128, 37])
def test_products_in_the_order_of_the_output(target, device, dim, valid, sums):
    """Of two tiles, with a new maximum between them (the last product's is 1, as in the mainloop): the orders of keys and head elements cancel; P is rounded to e4m3 and ends at 448.
    "scaled": fp32 sums of products that are multiplied by a number of the tile's first.
    """
    problem = Problem(dtype=DType.FP8, head_dim=dim)
    keys = keys_of(dim)
    v, p, alpha = torch.randn(2, keys, dim).to(E4M3), torch.rand(2, 64, keys) * 256, torch.stack([torch.rand(64), torch.ones(64)])
    p[0, 5, 7] = 500.0
    p[:, :, valid:] = 0.0
    o = torch.full((64, dim), float("nan"), device=device)
    poisoned = v.clone()
    poisoned[:, valid:] = float("nan")
    scaled = sums == "scaled"
    tops = torch.tensor([0.3, 2.0]) if scaled else torch.ones(2)
    kernel = kernel_of(PRODUCT, problem, "fp32" if scaled else sums, scaled=scaled, v="*fp8", p="*f32", alpha="*f32", top="*f32", o="*f32")
    values = {"v": poisoned, "p": p, "alpha": alpha, "top": tops[:, None].expand(2, 64).contiguous()}
    run_kernel(kernel, {**{name: value.to(device) for name, value in values.items()}, "o": o, "valid": valid}, target=target)
    expected = torch.zeros(64, dim)
    for n in range(2):
        product = Fp8Transpose.reference(p[n].clamp(max=448.0), v[n], torch.zeros(64, dim))
        expected = (expected + tops[n].double() * product) * alpha[n].double()[:, None]
    assert (o.cpu().double() - expected).norm() < product_rms(DType.FP8, target) * expected.norm()


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_the_microkernel_compiles_without_spills(dim):
    """And is what it says it is: matrix loads that transpose, byte permutes, matrix stores."""
    kernel = kernel_of(TRANSPOSE, Problem(dtype=DType.FP8, head_dim=dim), v="*fp8", vt="*fp8")
    facts = compile_kernel(kernel, "test").facts
    assert (facts.spill_stores, facts.spill_loads, facts.stack_bytes) == (0, 0, 0)
    assert facts.opcodes["LDSM"] == 8 and facts.opcodes["STSM"] == 8, facts.opcodes


@pytest.mark.parametrize("problem,sums,message", [
    (Problem(), "tensor_cores", "bf16 V needs no transpose"), (Problem(dtype=DType.FP8, head_dim=256), "fp32", "sums in fp32 are for heads of 128 values at most"),
])  # fmt: skip
def test_what_it_does_not_take(problem, sums, message):
    with pytest.raises(SpecError, match=message):
        Fp8Transpose(sums=sums).check(problem)
