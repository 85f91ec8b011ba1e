"""V scales per token and head: fetched past no sequence's end, made relative by the producer warp, and back in units of V after the product."""

import pytest
import torch

import tle_attn
from tle_attn import emu
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.components.scales.per_token_head_kv import LEAST, PerTokenHeadKV
from tle_attn.errors import SpecError
from tle_attn.random_problems import problem_for
from tle_attn.spec import Argument, DType, MBarriers, Problem
from tle_attn.testing.blocks import check_block
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

NAN = float("nan")
RECIPE, PREFILL = "variants/decode_fp8_kv_per_token", "variants/prefill_fp8_kv_per_token"
FETCH = """
@jit
def test(args):
    ids = page_block(args, args.pages, args.page, args.kv_len, 0, 0)
    scales = fetch_value_scales(args, ids, args.lane, args.tile, args.kv_len - args.tile * TILE, args.head)
    store(args.fetched + vec_index(TILE), scales)
"""
NUMBERS = ("page", "kv_len", "lane", "tile", "head")


@pytest.mark.parametrize("in_cache", [False, True])
@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("kv_len,tile", [(1, 0), (64, 0), (200, 1), (200, 3), (5000, 77), (5000, 78)])
def test_scales_of_a_value_tile(target, device, page, kv_len, tile, in_cache):
    """Token t of a page has its scale at row t / 32, column t % 32 of the page's head; 0 past the sequence's end, also within its last page, whose other scales are NaN."""
    problem = Problem(dtype=DType.FP8, page=page)
    used, heads, head, rows = -(-kv_len // page), 3, 1, -(-page // 32)
    storage = torch.full((used + 2, page + rows, heads, 32), NAN) if in_cache else torch.full((used + 2, rows, heads, 32), NAN)
    scales = storage[:, -rows:]
    table = torch.full((used + 40,), -1, dtype=torch.int32)
    table[:used] = torch.randperm(used + 2)[:used].int()
    wanted = torch.zeros(64)
    for token in range(kv_len):
        inside, value = token % page, torch.randn(())
        scales[table[token // page], inside // 32, head, inside % 32] = value
        if token // 64 == tile:
            wanted[token % 64] = value
    first = tile * 64 // page // 32 * 32  # the block of 32 page ids that holds the tile's
    arguments = [Argument("pages", "*i32", "page ids"), *(Argument(n, "i32", "") for n in NUMBERS), Argument("fetched", "*f32", "scales")]
    kernel = mini_kernel(FETCH, PerTokenHeadKV(), problem=problem, arguments=arguments)
    fetched = torch.full((64,), NAN, device=device)
    numbers = {"page": first, "kv_len": kv_len, "lane": tile * 64 // page - first, "tile": tile, "head": head}
    strides = {f"v_scale_{name}_stride": scales.stride(i) for i, name in enumerate(("page", "row", "head"))}
    placed = storage.to(device)[:, -rows:]
    run_kernel(kernel, {"pages": table.to(device), "v_scale": placed, "fetched": fetched, **numbers, **strides}, target=target)
    assert torch.equal(fetched.cpu(), wanted)


PUBLISH = """
@jit
def test(args):
    ratios = alloc_plain([STAGES, TILE], F32)
    tops = alloc_plain([STAGES, COLUMNS], F32)
    full = alloc_barriers(STAGES)
    role_sync()
    publish_value_scales(ratios, tops, full, args.i, load(args.scales + vec_index(TILE)))
    barrier_wait(full[args.i % STAGES], args.i // STAGES)
    s = mma_zeros(64, TILE, DTYPE)
    o = mma_zeros(64, COLUMNS, DTYPE)
    store(args.ratios + cols(s), smem_load_cols(ratios.slot(args.i % STAGES), s))
    store(args.tops + cols(o), smem_load_cols(tops.slot(args.i % STAGES), o))
"""
TILES = {
    "positive": lambda: torch.rand(64) + 0.01,
    "of any sign": lambda: torch.randn(64),
    "all negative": lambda: -torch.rand(64) - 0.01,
    "far apart": lambda: torch.exp2(80 * torch.rand(64) - 40),
    "one": lambda: torch.eye(64)[torch.randint(64, ())] * 3.5,
    "none": lambda: torch.zeros(64),
    "too small for a normal number": lambda: torch.full((64,), 1e-40),
}


@pytest.mark.parametrize("phase,tokens", [("decode", 1), ("decode", 4), ("prefill", 1)])
@pytest.mark.parametrize("name", TILES)
def test_published(target, device, name, phase, tokens):
    """Ratios are finite and at most 1 in magnitude, and times the top they are the scales."""
    problem, (keys, columns) = Problem(dtype=DType.FP8, query_tokens=tokens), (64, max(8, 8 * tokens)) if phase == "decode" else (128, 64)
    scales = torch.cat([TILES[name]() for _ in range(keys // 64)])
    arguments = [Argument("scales", "*f32", ""), Argument("i", "i32", ""), Argument("ratios", "*f32", ""), Argument("tops", "*f32", "")]
    prefill = {"companions": [*prefill_companions(problem)[:1], MbarrierRing(stages=3), *prefill_companions(problem)[2:]]} if phase == "prefill" else {}
    kernel = mini_kernel(PUBLISH, PerTokenHeadKV(), problem=problem, arguments=arguments, **prefill)
    ratios, tops = torch.full((keys,), NAN, device=device), torch.full((columns,), NAN, device=device)
    run_kernel(kernel, {"scales": scales.to(device), "i": 0, "ratios": ratios, "tops": tops}, target=target)
    expected, top = PerTokenHeadKV.reference(scales)
    ratios, tops = ratios.cpu().double(), tops.cpu().double()
    torch.testing.assert_close(ratios, expected, rtol=1e-6, atol=LEAST if name.startswith("too") else 0.0)
    assert (tops == top).all() and (ratios.abs() <= 1 + 1e-6).all()
    assert name in ("none", "too small for a normal number") or ratios.abs().max() > 1 - 1e-6, "the range of e4m3 is used"


@pytest.mark.parametrize("tokens", [1, 3])
def test_weights(target, tokens):
    """P times the ratio of its key; above the limit it stays, so that the test sees it, even where a scale of 0 meets infinity."""
    problem = Problem(dtype=DType.FP8, query_tokens=tokens)
    p, ratio = torch.rand(64, problem.columns) * 448.0, 2 * torch.rand(64) - 1
    p[3, 2], p[17, 5], ratio[17], ratio[3] = 449.0, float("inf"), 0.0, 0.25

    def reference(p, ratio, limit):
        return torch.where(p > limit, p, p.double() * ratio.double()[:, None])

    run = check_block(PerTokenHeadKV(), "weigh_values", problem=problem, inputs={"p": p, "ratio": ratio, "limit": 448.0}, reference=reference, target=target)
    assert run.outputs["p"][3, 2] == 449.0 and run.outputs["p"][17, 5] == float("inf")


def test_product(target, fp8):
    reference = lambda product, top: product.double() * top.double()[None, :]  # noqa: E731
    check_block(PerTokenHeadKV(), "in_value_units", problem=fp8, inputs={"top": torch.full((8,), 0.37)}, reference=reference, target=target)


def test_query_factor(target, fp8, query_factor_ports):
    q_scale = torch.rand(3, 16) + 0.5
    inputs = {"q_scale": q_scale, "q_scale_stride": 16, "scale_log2": 0.25, "column": torch.arange(8), "seq": 2, "head": 1}
    reference = lambda q_scale: q_scale[2, 8:16].double() * 0.25  # noqa: E731
    check_block(PerTokenHeadKV(), "query_factor", problem=fp8, inputs=inputs, ports=query_factor_ports(fp8), reference=reference, target=target)


@pytest.mark.parametrize("problem,message", [
    (Problem(), "per_token_head_kv scales are for fp8 tensors"),
    (Problem(dtype=DType.FP8, head_dim=96), "K scales per token and head are for head_dim 128, not 96"),
    (Problem(dtype=DType.FP8, value_dim=96), "V scales per token and head are for heads of 128 values, not 96"),
])  # fmt: skip
def test_what_it_is_not_for(problem, message):
    with pytest.raises(SpecError, match=message):
        PerTokenHeadKV().check(problem)


class TestInAKernel:
    def test_ring_of_scales(self):
        kernel = tle_attn.load(RECIPE).kernel(query_tokens=2)
        stages = kernel.mainloop.ring.stages
        buffers = {b.name: b.shape for b in kernel.resources.buffers}
        assert buffers["v_ratios"] == (stages, 64) and buffers["v_tops"] == (stages, 16)
        assert MBarriers("ratios_full", stages, 1, 0, False, ("load_values",), ("attend",)) in kernel.resources.barriers

    @pytest.mark.parametrize("options,message", [
        ({"v_operand.sums": "tensor_cores"}, "v_operand.sums: V scales per token need key tiles that are added in fp32"),
        ({"ring.stages": 1}, "ring.stages: K scales per token need a second ring slot"),
        ({"loader.block": "contiguous_tma"}, "loader.block: loader/contiguous_tma has no pages"),
    ])  # fmt: skip
    def test_refused(self, options, message):
        with pytest.raises(SpecError, match=message):
            tle_attn.load(RECIPE).set(options).kernel()

    def test_the_text_takes_what_the_spec_says(self, monkeypatch):
        """Shared buffers of the spec are the allocations of the emulated launch."""
        kernel, seen, launch = tle_attn.load(RECIPE).kernel(), [], emu.launch
        monkeypatch.setattr(emu, "launch", lambda *args, **kwargs: seen.append(launch(*args, **kwargs)) or seen[-1])
        problem = problem_for(kernel, [100])
        tle_attn.plan(kernel, **problem.geometry, target="cpu").run(**problem.inputs)
        assert seen[-1].shared_bytes == sum(b.nbytes for b in kernel.resources.buffers)

    @pytest.mark.parametrize("options,message", [
        ({"v_operand.sums": "tensor_cores"}, "v_operand.sums: V scales per token need key tiles that are added in fp32"),
        ({"loader.block": "contiguous_tiles"}, "scale.block: scales of keys lie beside the pages of a cache"),
    ])  # fmt: skip
    def test_refused_in_prefill(self, options, message):
        with pytest.raises(SpecError, match=message):
            tle_attn.load(PREFILL).set(options).kernel()

    def test_ring_of_scales_in_prefill(self):
        kernel = tle_attn.load(PREFILL).kernel()
        buffers = {b.name: b.shape for b in kernel.resources.buffers}
        assert buffers["v_ratios"] == (3, 128) and buffers["v_tops"] == (3, 64)
        assert MBarriers("ratios_full", 3, 1, 0, False, ("produce",), ("attend", "attend_2")) in kernel.resources.barriers
