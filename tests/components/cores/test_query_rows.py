"""Query-row core: the scores of 64 rows for every element type, Q in shared memory or in registers, one unit after the other through one buffer."""

import pytest
import torch

from tests.components.products import product_rms
from tle_attn.components.cores.query_rows import QueryRows
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.spec import Argument, DType, Problem, Role
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

#: two consumers; the rows of unit i start at row `starts[i]` of q.  K is the same tile for all.
TEXT = """
@jit
def produce(args, q_smem, q_rest, q_full, q_rest_full, q_empty):
    for i in range(args.units):
        row = load(args.starts + i)
        for w in static_range(2):
            load_query_tile(args, q_smem, q_rest, q_full, q_rest_full, q_empty, w, i, args.head, row + w * 64)


@jit
def scores(q, q_rest, k_tile, k_rest, k_full):
    s = qk_rows(q, k_tile)
    if REST:
        s = add_rest(q_rest, k_rest, k_full, 0, s)
    return wgmma_wait(0, s)


@jit
def consume(args, w: constexpr, q_smem, q_rest_smem, k_tile, k_rest, q_full, q_rest_full, q_empty, k_full):
    s = mma_zeros(64, TILE, DTYPE)
    for i in range(args.units):
        q = take_queries(q_smem, q_full, q_empty, w, i, s)
        q_rest = 0
        if REST:
            q_rest = take_queries(q_rest_smem, q_rest_full, q_empty, w, i, s)
        s = scores(q, q_rest, k_tile, k_rest, k_full)
        give_queries_back(q_empty, w, True)
        t = scores(q, q_rest, k_tile, k_rest, k_full)
        give_queries_back(q_empty, w, False)
        at = (((i * 2 + w) * 64 + rows(s)) * TILE)[:, None] + cols(s)[None, :]
        store(args.s + at, s)
        store(args.t + at, t)


@jit
def test(args):
    q_smem = alloc([2, 64, HEAD_DIM], DTYPE)
    k_tile = alloc([TILE, HEAD_DIM], DTYPE)
    i, j = tile_index(TILE, HEAD_DIM, 8)
    smem_store(k_tile, load(args.k + (i * args.k_stride)[:, None] + j[None, :]))
    if REST:
        q_rest = alloc([2, 64, REST_DIM], DTYPE)
        k_rest = alloc([STAGES, TILE, REST_DIM], DTYPE)
        i, j = tile_index(TILE, REST_DIM, 8)
        smem_store(k_rest.slot(0), load(args.k + HEAD_DIM + (i * args.k_stride)[:, None] + j[None, :]))
        q_rest_full = alloc_barriers(2, expect_bytes=Q_REST_BYTES)
        k_full = alloc_barriers(STAGES)
    q_full = alloc_barriers(2, expect_bytes=Q_BYTES)
    q_empty = alloc_barriers(2, init=READY)
    fence_async()
    role_sync()
    if REST:
        barrier_arrive(k_full[0])
    warp_specialize(
        [
            (consume, (args, 0, q_smem, q_rest, k_tile, k_rest, q_full, q_rest_full, q_empty, k_full)),
            (consume, (args, 1, q_smem, q_rest, k_tile, k_rest, q_full, q_rest_full, q_empty, k_full)),
            (produce, (args, q_smem, q_rest, q_full, q_rest_full, q_empty)),
        ],
        [4, 1],
        [160, 24],
    )
"""


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP8])
def test_scores_of_units(target, device, seed, dtype, head_dim, registers):
    """Rows from anywhere in q, the first product with Q and a later one; rows past the end of q give zeros."""
    problem, block = Problem(dtype=dtype, head_dim=head_dim, value_dim={192: 128}.get(head_dim)), QueryRows(registers=registers)
    kind, heads, head, n = getattr(torch, dtype.torch_name), 3, 1, 500
    q, k = torch.randn(n, heads, head_dim).to(kind), torch.randn(problem.prefill_keys, head_dim).to(kind)
    starts = torch.tensor([5, 200, 450, 0, 320], dtype=torch.int32)
    roles = [Role("consume", "consume", 4, 0), Role("consume_2", "consume", 4, 160), Role("produce", "produce", 1, 24)]
    numbers = [*(Argument(name, "i32", "") for name in ("units", "head", "k_stride")), Argument("starts", "*i32", "first rows")]
    arguments = [*numbers, Argument("k", f"*{dtype.value}", ""), Argument("s", "*f32", "first products"), Argument("t", "*f32", "second products")]
    ring = [MbarrierRing(stages=1)] if problem.head_tiles[1] else []
    kernel = mini_kernel(TEXT, block, *ring, problem=problem, arguments=arguments, roles=roles, companions=prefill_companions(problem))
    s, t = (torch.full((len(starts) * 128, len(k)), float("nan"), device=device) for _ in range(2))
    described = {name: q.to(device).permute(1, 0, 2) for name in ("q_desc", "q_rest_desc")[: 2 if head_dim == 192 else 1]}
    values = {**described, "k_stride": head_dim, "units": len(starts), "head": head, "starts": starts.to(device), "k": k.to(device), "s": s, "t": t}
    run_kernel(kernel, values, target=target, seed=seed)
    padded = torch.cat([q[:, head], torch.zeros(128, head_dim).to(kind)])
    expected = torch.cat([block.reference(padded[start : start + 128].float(), k.float()) for start in starts.tolist()])
    for out in (s, t):
        assert (out.cpu().double() - expected).norm() < product_rms(dtype, target) * expected.norm()


@pytest.mark.parametrize("dtype,head_dim,chosen,held", [
    (DType.BF16, 128, None, False), (DType.FP8, 128, None, True), (DType.BF16, 128, True, True), (DType.FP8, 128, False, False), (DType.FP8, 256, None, False), (DType.FP8, 256, True, True),
])  # fmt: skip
def test_where_q_is_held(dtype, head_dim, chosen, held):
    """Unless a recipe says otherwise, fp8 holds Q in registers; bf16, and fp8 beside an output of 256 columns, have none left for it."""
    assert QueryRows(registers=chosen).in_registers(Problem(dtype=dtype, head_dim=head_dim)) is held
