"""Per-token fp8 scales: K scales beside the pages, fetched by the producer warp; V scales per head."""

import pytest
import torch

from tests.components.scales.row_factors import expected, row_factors, scales_of
from tle_attn.components.scales.per_token_head import PerTokenHead
from tle_attn.components.scales.per_token_head_kv import PerTokenHeadKV
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, DType, Function, Port, Problem
from tle_attn.testing.blocks import check_block
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

FETCH = """
@jit
def test(args):
    ids = page_block(args, args.pages, args.page, args.kv_len, 0, 0)
    scales = fetch_key_scales(args, ids, args.lane, args.tile, args.head)
    store(args.fetched + vec_index(TILE), scales)
"""
NUMBERS = ("page", "kv_len", "lane", "tile", "head")


@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("kv_len,tile", [(1, 0), (64, 0), (200, 1), (200, 3), (5000, 77)])
def test_scales_of_a_key_tile(target, device, page, kv_len, tile):
    """Token t of a page has its scale at row t / 32, column t % 32 of the page's head; pages past the end give 0."""
    problem = Problem(dtype=DType.FP8, page=page)
    pages, heads, head, rows = -(-kv_len // page) + 2, 3, 1, -(-page // 32)
    cache = torch.rand(pages, rows, heads, 32) + 0.5
    table = torch.full((pages + 40,), -1, dtype=torch.int32)
    used = -(-kv_len // page)
    table[:used] = torch.randperm(pages)[:used].int()
    first = tile * 64 // page // 32 * 32  # the block of 32 page ids that holds the tile's
    arguments = [Argument("pages", "*i32", "page ids"), *(Argument(n, "i32", "") for n in NUMBERS), Argument("fetched", "*f32", "scales")]
    kernel = mini_kernel(FETCH, PerTokenHead(), problem=problem, arguments=arguments)
    fetched = torch.full((64,), float("nan"), device=device)
    page_stride, row_stride, head_stride = cache.stride()[:3]
    numbers = {"page": first, "kv_len": kv_len, "lane": tile * 64 // page - first, "tile": tile, "head": head}
    strides = {"k_scale_page_stride": page_stride, "k_scale_row_stride": row_stride, "k_scale_head_stride": head_stride}
    run_kernel(kernel, {"pages": table.to(device), "k_scale": cache.to(device), "fetched": fetched, **numbers, **strides}, target=target)

    expected = torch.zeros(64)
    for i, token in enumerate(range(tile * 64, tile * 64 + 64)):
        if token // page < used:
            inside = token % page
            expected[i] = cache[table[token // page], inside // 32, head, inside % 32]
    assert torch.equal(fetched.cpu(), expected)


def test_query_factor(target, fp8, query_factor_ports):
    q_scale = torch.rand(3, 16) + 0.5
    inputs = {"q_scale": q_scale, "q_scale_stride": 16, "scale_log2": 0.25, "column": torch.arange(8), "seq": 2, "head": 1}
    ports = query_factor_ports(fp8)
    check_block(
        PerTokenHead(), "query_factor", problem=fp8, inputs=inputs, ports=ports, reference=lambda q_scale: q_scale[2, 8:16].double() * 0.25, target=target
    )


def test_output_has_the_heads_scale(target, fp8):
    inputs = {"unit": 2.5, "v_scale": torch.tensor([1.5, 0.37]), "head": 1}
    check_block(
        PerTokenHead(), "value_scale", problem=fp8, inputs=inputs, reference=lambda v_scale: 2.5 * v_scale[1].double(), target=target
    )


def test_bf16_needs_no_scales():
    with pytest.raises(SpecError, match="per_token_head scales are for fp8 tensors"):
        PerTokenHead().check(Problem())


def test_value_factor_of_prefill(target, fp8):
    ports = Function("value_factor", (), (Port("factor", DType.F32, (), ()),))
    inputs = {"v_scale": torch.tensor([1.5, 0.37]), "head": 1}
    check_block(PerTokenHead(), "value_factor", problem=fp8, inputs=inputs, ports=ports, reference=lambda v_scale: v_scale[1], target=target)


@pytest.mark.parametrize("place", [(0, 0, 200, 0), (1, 64, 130, 2), (1, 128, 130, 1)])
def test_row_factors_of_prefill(target, device, place):
    scales = scales_of((200, 130))
    got = row_factors(PerTokenHead(), scales, place, target, device, scale_log2=0.25)
    torch.testing.assert_close(got.double(), expected(scales, place, 0.25), rtol=1e-6, atol=0.0)


READ = """
@jit
def test(args):
    store(args.read + vec_index(TILE), read_WHAT_scales(args, args.pages, args.tile, args.kv_len, args.head))
"""


@pytest.mark.parametrize("block,what", [(PerTokenHead(), "key"), (PerTokenHeadKV(), "key"), (PerTokenHeadKV(), "value")], ids=["K", "K beside V", "V"])
@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("kv_len,tile", [(1, 0), (128, 0), (200, 1), (129, 1), (5000, 39), (100, 1)])
def test_scales_of_prefill(target, device, page, kv_len, tile, block, what):
    """A tile of 128 keys; keys past the end have 0 even inside the last page, whose other scales are NaN."""
    problem = Problem(dtype=DType.FP8, page=page)
    used, heads, head = -(-kv_len // page), 3, 1
    cache = torch.full((used + 2, -(-page // 32), heads, 32), float("nan"))
    table = torch.full((used + 20,), 2**31 - 1, dtype=torch.int32)
    table[:used] = torch.randperm(used + 2)[:used].int()
    wanted = torch.zeros(128)
    for token in range(kv_len):
        inside, value = token % page, torch.rand(()) + 0.5
        cache[table[token // page], inside // 32, head, inside % 32] = value
        if token // 128 == tile:
            wanted[token % 128] = value
    arguments = [Argument("pages", "*i32", "page ids"), *(Argument(n, "i32", "") for n in ("tile", "kv_len", "head")), Argument("read", "*f32", "scales")]
    kernel = mini_kernel(READ.replace("WHAT", what), block, problem=problem, arguments=arguments, companions=prefill_companions(problem))
    read = torch.full((128,), float("nan"), device=device)
    scale = f"{what[0]}_scale"
    strides = {f"{scale}_{name}_stride": cache.stride(i) for i, name in enumerate(("page", "row", "head"))}
    run_kernel(kernel, {"pages": table.to(device), scale: cache.to(device), "tile": tile, "kv_len": kv_len, "head": head, "read": read, **strides}, target=target)
    assert torch.equal(read.cpu(), wanted)
