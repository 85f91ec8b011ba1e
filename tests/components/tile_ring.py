"""A producer and a consumer around a ring of tiles of K and V, as the loaders of prefill fill it."""

from functools import lru_cache

import torch

from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.spec import Argument, Block, Kernel, Problem, Role
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

TEXT = """
@jit
def produce(args, k_boxes, k_rest_boxes, v_boxes, k_full, k_rest_full, v_full, k_empty, v_empty):
    source = key_source(args, args.seq)
    for i in range(args.count):
        slot = slot_of(i)
        acquire(k_empty, i)
        load_key_tile(args, source, k_boxes, k_full[slot], slot, args.first + i, args.kv_len, args.head)
        if REST:
            load_rest_tile(args, source, k_rest_boxes, k_rest_full[slot], slot, args.first + i, args.kv_len, args.head)
        acquire(v_empty, i)
        load_value_tile(args, source, v_boxes, v_full[slot], slot, args.first + i, args.kv_len, args.head)


@jit
def read(ring, full, i, out):
    wait_slot(full, i)
    t = smem_load(ring.slot(slot_of(i)))
    store(out + ((i * TILE + rows(t)) * t.shape[1])[:, None] + cols(t)[None, :], t)
    role_sync()  # the tile's reads are over


@jit
def consume(args, k_ring, k_rest, v_ring, k_full, k_rest_full, v_full, k_empty, v_empty):
    for i in range(args.count):
        read(k_ring, k_full, i, args.k)
        if REST:
            read(k_rest, k_rest_full, i, args.k_rest)
        release(k_empty, i)
        read(v_ring, v_full, i, args.v)
        release(v_empty, i)


@jit
def test(args):
    k_ring = alloc([STAGES, TILE, HEAD_DIM], DTYPE)
    v_ring = alloc([STAGES, TILE, HEAD_DIM], DTYPE)
    if COPIES == 1:
        k_boxes = k_ring
        v_boxes = v_ring
    else:
        k_boxes = alias(k_ring, [STAGES * COPIES, BOX_ROWS, BOX_COLS])
        v_boxes = alias(v_ring, [STAGES * COPIES, BOX_ROWS, BOX_COLS])
    if REST:
        k_rest = alloc([STAGES, TILE, REST_DIM], DTYPE)
        k_rest_boxes = k_rest if REST_COPIES == 1 else alias(k_rest, [STAGES * REST_COPIES, BOX_ROWS, REST_DIM])
        k_rest_full = alloc_barriers(STAGES, REST_COPIES, expect_bytes=REST_BOX_BYTES)
    k_full = alloc_barriers(STAGES, COPIES, expect_bytes=BOX_BYTES)
    v_full = alloc_barriers(STAGES, COPIES, expect_bytes=BOX_BYTES)
    k_empty = alloc_barriers(STAGES, init=READY)
    v_empty = alloc_barriers(STAGES, init=READY)
    fence_async()
    warp_specialize(
        [
            (consume, (args, k_ring, k_rest, v_ring, k_full, k_rest_full, v_full, k_empty, v_empty)),
            (produce, (args, k_boxes, k_rest_boxes, v_boxes, k_full, k_rest_full, v_full, k_empty, v_empty)),
        ],
        [1],
        [32],
    )
"""
NUMBERS = ("seq", "first", "count", "kv_len", "head")


@lru_cache
def ring_kernel(problem: Problem, loader: Block, stages: int = 2) -> Kernel:
    kind = f"*{problem.dtype.value}"
    arguments = [*(Argument(n, "i32", "") for n in NUMBERS), *(Argument(n, kind, "tiles as rows of tokens") for n in ("k", "k_rest", "v"))]
    roles = (Role("consume", "consume", 4, 0), Role("produce", "produce", 1, 32))
    return mini_kernel(TEXT, loader, MbarrierRing(stages=stages), problem=problem, arguments=arguments, roles=roles, companions=prefill_companions(problem))


def through_the_ring(kernel: Kernel, count: int, target: str, device: str, seed: int, **values) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes of K [count * keys of a tile, head_dim] and V as they came out; `values`: the loader's arguments, and of the numbers those that it looks at."""
    problem = kernel.problem
    dtype, (first, rest) = getattr(torch, problem.dtype.torch_name), problem.head_tiles
    widths = {"k": first, "v": problem.v_dim} | ({"k_rest": rest} if rest else {})
    out = {name: torch.full((max(count, 1) * problem.prefill_keys, columns), float("nan"), device=device).to(dtype) for name, columns in widths.items()}
    values |= {"k_rest_desc": values["k_desc"]} if rest else {}
    run_kernel(kernel, {**values, "count": count, **out}, target=target, seed=seed)
    k, v = (torch.cat([out[name].cpu()[: count * problem.prefill_keys].view(torch.uint8) for name in names if name in out], 1) for names in (("k", "k_rest"), ("v",)))
    return k, v
