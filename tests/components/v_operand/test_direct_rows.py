"""V of prefill as it lies: the product with P in registers, and clearing of unused keys."""

import pytest
import torch

from tle_attn.components.v_operand.direct_rows import DirectRows
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, DType, Problem, Role
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

PRODUCT = """
@jit
def test(args):
    v_tiles = alloc([2, TILE, HEAD_DIM], DTYPE)
    i, j = tile_index(TILE, HEAD_DIM, 8)
    for n in range(2):
        smem_store(v_tiles.slot(n), load(args.v + ((n * TILE + i) * HEAD_DIM)[:, None] + j[None, :]))
    fence_async()
    role_sync()
    s = mma_zeros(64, TILE, DTYPE)
    o = no_output()
    for n in range(2):
        p = load(args.p + ((n * 64 + rows(s)) * TILE)[:, None] + cols(s)[None, :])
        operand = p_operand(p, o[0])
        product = begin_pv(operand, v_tiles, n, o)
        o, product = go_on_with_pv(operand, v_tiles, n, o, product, 1.0)
        o = end_pv(o, product, 1.0)
        o = rescaled(o, load(args.alpha + n * 64 + rows(s)))
    out = output_rows(o)
    store(args.o + (rows(out) * HEAD_DIM)[:, None] + cols(out)[None, :], out)
"""

#: consumer 1, which clears nothing, reads what the ring holds behind the barrier
CLEAR = """
@jit
def consume(args, w: constexpr, ring, atoms, both):
    clear_rows(atoms, args.slot, args.valid, w, both)
    if w == 1:
        for i in range(2):
            v = smem_load(ring.slot(i))
            store(args.v + ((i * TILE + rows(v)) * HEAD_DIM)[:, None] + cols(v)[None, :], v)


@jit
def test(args):
    ring = alloc([2, TILE, HEAD_DIM], DTYPE)
    atoms = alias(ring, [2 * COLUMN_BLOCKS * TILE // 8, 8, BOX_COLS])
    both = alloc_named(10, 1, 256)
    i, j = tile_index(8, BOX_COLS, 8)
    for n in range(2):
        for c in static_range(COLUMN_BLOCKS):
            for g in range(TILE // 8):
                at = ((n * TILE + g * 8 + i) * HEAD_DIM)[:, None] + (c * BOX_COLS + j)[None, :]
                smem_store(atoms.slot((n * COLUMN_BLOCKS + c) * (TILE // 8) + g), load(args.v + at))
    role_sync()
    warp_specialize([(consume, (args, 0, ring, atoms, both)), (consume, (args, 1, ring, atoms, both))], [4], [64])
"""


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_products(target, device, head_dim):
    """Of two tiles, with a new maximum after each."""
    problem = Problem(head_dim=head_dim)
    keys = problem.prefill_keys
    v, p, alpha = torch.randn(2, keys, head_dim).bfloat16(), torch.rand(2, 64, keys), torch.rand(2, 64)
    arguments = [Argument("v", "*bf16", ""), *(Argument(name, "*f32", "") for name in ("p", "alpha", "o"))]
    kernel = mini_kernel(PRODUCT, DirectRows(), problem=problem, arguments=arguments, companions=prefill_companions(problem))
    got = torch.full((64, head_dim), float("nan"), device=device)
    run_kernel(kernel, {"v": v.to(device), "p": p.to(device), "alpha": alpha.to(device), "o": got}, target=target)
    expected = torch.zeros(64, head_dim)
    for n in range(2):
        expected = DirectRows.reference(p[n], v[n], expected) * alpha[n].double()[:, None]
    assert (got.cpu().double() - expected).norm() < 1e-5 * expected.norm()


def clear_kernel(problem: Problem):
    roles = (Role("consume", "consume", 4, 0), Role("consume_2", "consume", 4, 64))
    arguments = [Argument("v", "*bf16", "the ring's two tiles, in and out"), Argument("slot", "i32", ""), Argument("valid", "i32", "")]
    return mini_kernel(CLEAR, DirectRows(), problem=problem, arguments=arguments, roles=roles, companions=prefill_companions(problem))


def test_clear_at_every_length(target, device, seed):
    """Keys from `valid` on become zero whatever they held, those before it and the other slot stay."""
    problem = Problem(head_dim=(64, 128, 256)[seed % 3])
    keys = problem.prefill_keys
    kernel = clear_kernel(problem)
    for valid in range(1, keys + 1):
        slot = valid % 2
        v = torch.randn(2, keys, problem.head_dim).bfloat16()
        v[slot, valid:] = float("nan")
        expected = v.clone()
        expected[slot, valid:] = 0.0
        got = v.clone().to(device)
        run_kernel(kernel, {"v": got, "slot": slot, "valid": valid}, target=target, seed=seed + valid)
        assert torch.equal(got.cpu(), expected), valid


def test_fp8_is_refused():
    with pytest.raises(SpecError, match="key-contiguous only") as caught:
        DirectRows().check(Problem(dtype=DType.FP8))
    assert "fp8_transpose" in str(caught.value)
