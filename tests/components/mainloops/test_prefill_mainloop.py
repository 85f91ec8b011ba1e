"""Prefill mainloop: whole kernels of small ragged problems against the float64 oracle, with every option; and what it says about itself."""

import pytest
import torch

import tle_attn
from tle_attn import emu
from tle_attn.codegen import generate
from tle_attn.components.cores.query_rows import QueryRows
from tle_attn.components.epilogues.store_rows import StoreRows
from tle_attn.components.loaders.contiguous_tiles import ContiguousTiles
from tle_attn.components.mainloops.prefill import PrefillMainloop
from tle_attn.components.masks.causal import Causal
from tle_attn.components.masks.sliding_window import SlidingWindow
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.components.scales.per_tensor import PerTensor
from tle_attn.components.scales.per_token_head import PerTokenHead
from tle_attn.components.scores.soft_cap import SoftCap
from tle_attn.components.tiles.block_mask import BlockMask
from tle_attn.components.v_operand.fp8_transpose import Fp8Transpose
from tle_attn.random_problems import prefill_problem_for
from tle_attn.spec import DType, Kernel, Problem
from tle_attn.testing import compare, compare_lse

#: several query tiles, no query, one, more queries than keys, no key, tiles that are full and that are not
PAIRS = ((200, 389), (0, 5), (1, 130), (70, 40), (3, 0), (64, 256))
FP8 = {"v_operand": Fp8Transpose(), "consumer_registers": 224, "producer_registers": 64}


def kernel_of(problem: Problem | None = None, *, stages: int = 2, **slots) -> Kernel:
    return Kernel(name="test", problem=problem or Problem(group=2, head_dim=64), mainloop=PrefillMainloop(ring=MbarrierRing(stages=stages), **slots))


def check(kernel: Kernel, target: str, seed: int, *, pairs=PAIRS, kv_heads: int = 1, layout: str = "NHD", lse_base: str | None = None, **options) -> None:
    """Run a kernel composed in Python on a ragged batch and compare it with the oracle; rows of no sequence stay as they were."""
    device = "cuda" if target == "gluon" else "cpu"
    problem = prefill_problem_for(kernel, pairs, kv_heads, layout=layout, seed=seed, padding_rows=3, device=device)
    out = problem.new_output()
    _, lse = tle_attn.plan(kernel, **problem.geometry, target=target, seed=seed).run(**problem.inputs, out=out)
    ref, ref_lse = problem.reference(causal=True, lse_base=lse_base, **options)
    live = problem.num_queries
    fp8 = kernel.problem.dtype is DType.FP8
    compare(out[:live], ref[:live], rms=2e-2 if fp8 else 4e-3, name_row=problem.name_row)
    assert torch.isnan(out[live:]).all(), "rows of no sequence stay"
    if lse_base:
        compare_lse(lse[:live], ref_lse[:live], atol=2e-2 if fp8 else 1e-3, name_row=problem.name_row)


@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("head_dim,group,kv_heads,layout", [(64, 1, 2, "NHD"), (128, 2, 1, "HND")])
def test_pages_and_heads(target, seed, page, head_dim, group, kv_heads, layout):
    check(kernel_of(Problem(page=page, head_dim=head_dim, group=group)), target, seed, kv_heads=kv_heads, layout=layout)


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP8])
@pytest.mark.parametrize("head_dim,value_dim", [(192, 128), (192, 96), (96, 128), (256, None)])
def test_heads_of_two_tiles_and_tiles_of_64_keys(target, seed, head_dim, value_dim, dtype, consumers):
    fp8 = {**FP8, "scale": PerTensor()} if dtype is DType.FP8 else {}
    problem = Problem(dtype=dtype, group=1, head_dim=head_dim, value_dim=value_dim, page=(16, 32, 64, 128)[seed % 4])
    check(kernel_of(problem, consumers=consumers, **fp8), target, seed)


@pytest.mark.parametrize("consumers", [1, 2])
def test_every_place_of_the_causal_frontier_in_tiles_of_64_keys(consumers):
    """Up to three tiles of a consumer's rows cross it."""
    kernel = kernel_of(Problem(group=1, head_dim=256), consumers=consumers)
    for first in range(0, 64, 9):
        check(kernel, "cpu", first, pairs=tuple((q, 190 + first + i) for i, q in enumerate((128, 129, 64, 63, 1, 100))))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_stages(target, seed, stages):
    check(kernel_of(stages=stages), target, seed)


@pytest.mark.parametrize("scale", [PerTensor(), PerTokenHead()], ids=lambda s: s.NAME)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_stages_of_fp8(target, seed, stages, scale):
    check(kernel_of(Problem(dtype=DType.FP8, group=1), stages=stages, scale=scale, **FP8), target, seed)


def test_sums_in_fp32(target, seed):
    check(kernel_of(Problem(dtype=DType.FP8, group=1, head_dim=64), stages=3, scale=PerTensor(), **{**FP8, "v_operand": Fp8Transpose(sums="fp32")}), target, seed)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP8])
def test_turns_and_where_q_is_held(target, seed, dtype, registers, turns):
    fp8 = {**FP8, "scale": PerTensor()} if dtype is DType.FP8 else {}
    check(kernel_of(Problem(dtype=dtype, group=1, head_dim=64), exclusive_exp=turns, qk=QueryRows(registers=registers), **fp8), target, seed)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP8])
def test_one_consumer(target, seed, dtype):
    """Units of 64 rows."""
    fp8 = {**FP8, "scale": PerTensor()} if dtype is DType.FP8 else {}
    check(kernel_of(Problem(dtype=dtype, group=1, head_dim=64), consumers=1, **fp8), target, seed)


def test_without_pages(target, seed):
    check(kernel_of(loader=ContiguousTiles()), target, seed, pairs=((200, 200), (0, 0), (1, 1), (129, 129)))


def test_block_mask(target, seed):
    check(kernel_of(tiles=BlockMask()), target, seed)


@pytest.mark.parametrize("window", [1, 100, 128, 200])
def test_window(target, seed, window):
    check(kernel_of(mask=(Causal(), SlidingWindow(window=window))), target, seed, window=window)


def test_soft_cap(target, seed):
    check(kernel_of(score=(SoftCap(cap=2.0),)), target, seed, soft_cap=2.0)


@pytest.mark.parametrize("base", ["e", "2"])
def test_lse(target, seed, base):
    check(kernel_of(epilogue=StoreRows(lse=base)), target, seed, lse_base=base)
    check(kernel_of(Problem(dtype=DType.FP8, group=1), scale=PerTensor(), epilogue=StoreRows(lse=base), **FP8), target, seed, lse_base=base)


def test_all_schedules_give_the_same_bits():
    kernel = kernel_of(Problem(dtype=DType.FP8, group=1), scale=PerTensor(), **FP8)
    problem = prefill_problem_for(kernel, ((150, 300), (20, 140)), seed=3)
    outs = {tle_attn.plan(kernel, **problem.geometry, target="cpu", seed=seed).run(**problem.inputs)[0].view(torch.int16).numpy().tobytes() for seed in range(6)}
    assert len(outs) == 1


@pytest.mark.parametrize("slots,absent", [
    ({}, ("turn", "factors", "vt_ring", "k_scales", "block_mask", "lse")), ({"exclusive_exp": True}, ("factors", "vt_ring")), ({"tiles": BlockMask()}, ("turn", "vt_ring")),
])  # fmt: skip
def test_what_is_off_leaves_no_trace(slots, absent):
    import ast

    tree = ast.parse(generate(kernel_of(**slots), "cpu").text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    assert not names & set(absent)


@pytest.mark.parametrize("slots", [{}, {"consumers": 1}, {**FP8, "scale": PerTokenHead()}], ids=["bf16", "one consumer", "fp8"])
def test_the_text_takes_what_the_spec_says(slots, monkeypatch):
    """Shared buffers of the spec are the allocations of the emulated launch."""
    kernel = kernel_of(Problem(dtype=DType.FP8 if "scale" in slots else DType.BF16, group=1), **slots)
    seen, launch = [], emu.launch

    def watch(*args, **kwargs):
        seen.append(launch(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(emu, "launch", watch)
    check(kernel, "cpu", 0, pairs=((5, 100),))
    assert seen[-1].shared_bytes == sum(b.nbytes for b in kernel.resources.buffers)
