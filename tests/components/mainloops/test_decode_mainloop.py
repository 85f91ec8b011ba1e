"""Decode mainloop: whole kernels of small problems against the float64 oracle, every geometry that it serves; and what it says about itself."""

import sys

import pytest
import torch
from attrs import frozen

import tle_attn
from tle_attn.components.loaders.contiguous_tma import ContiguousTma
from tle_attn.components.loaders.paged_tma import PagedTma
from tle_attn.components.mainloops.decode import DecodeMainloop
from tle_attn.components.masks.causal import Causal
from tle_attn.components.masks.sliding_window import SlidingWindow
from tle_attn.components.reducers.split_merge import SplitMerge
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.components.scales.per_tensor import PerTensor
from tle_attn.components.schedulers.static_split import StaticSplit
from tle_attn.components.schedulers.task_map import TaskMap
from tle_attn.components.scores.soft_cap import SoftCap
from tle_attn.components.v_operand.fp8_register import Fp8RegisterV
from tle_attn.errors import ResourceError, SpecError
from tle_attn.spec import Block, DType, Kernel, Problem
from tle_attn.testing import compare, compare_lse, make_decode_problem
from tle_attn.verify import problem_for

LENGTHS = [1, 63, 64, 65, 130, 0, 700]


def check(kernel: Kernel, target: str, seed: int, *, lengths=LENGTHS, kv_heads: int = 1, layout: str = "NHD", lse_base: str | None = None, **options) -> None:
    """Run a kernel composed in Python on a ragged batch and compare it with the oracle."""
    p, device = kernel.problem, "cuda" if target == "gluon" else "cpu"
    problem = problem_for(kernel, lengths, kv_heads, layout=layout, seed=seed, device=device)
    plan = tle_attn.plan(kernel, batch=len(lengths), query_heads=p.group * kv_heads, kv_heads=kv_heads, target=target, seed=seed)
    out = problem.new_output()
    _, lse = plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens, out=out, **problem.scales)
    ref, ref_lse = problem.reference(lse_base=lse_base, **options)
    compare(out, ref, rms=2e-2 if problem.is_fp8 else 3e-3, name_row=problem.name_row)
    if lse_base:
        compare_lse(lse, ref_lse, atol=2e-2 if problem.is_fp8 else 1e-3, name_row=problem.name_row)


def kernel_of(problem: Problem, **slots) -> Kernel:
    return Kernel(name="test", problem=problem, mainloop=DecodeMainloop(**slots))


@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_pages_and_query_tokens(target, seed, tokens, page):
    stages = {"ring": MbarrierRing(stages=2)} if tokens == 3 else {}  # 32 columns leave less room for the ring
    check(kernel_of(Problem(page=page, query_tokens=tokens), **stages), target, seed)


@pytest.mark.parametrize("group", [1, 2, 3, 5, 8])
def test_groups(target, seed, group):
    check(kernel_of(Problem(group=group)), target, seed, lengths=[300, 64, 0])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_layouts_and_heads(target, seed, head_dim, layout):
    check(kernel_of(Problem(head_dim=head_dim)), target, seed, kv_heads=2, layout=layout)


@pytest.mark.parametrize("base", ["e", "2"])
def test_lse(target, seed, base):
    from tle_attn.components.epilogues.store import StoreEpilogue

    check(kernel_of(Problem(), epilogue=StoreEpilogue(lse=base)), target, seed, lse_base=base)


@pytest.mark.parametrize("base", ["e", "2"])
def test_lse_of_fp8(target, seed, base):
    """P and its sums carry a power of two, which the LSE must not."""
    check(tle_attn.load("hy3/decode_fp8").set({"epilogue.lse": base}).kernel(), target, seed, lse_base=base)


def test_static_split(target, seed):
    check(kernel_of(Problem(), schedule=StaticSplit(splits=4)), target, seed, lengths=[5000, 513, 1, 0])


def test_long_sequences_are_split_and_polled(target, seed):
    check(kernel_of(Problem()), target, seed, lengths=[6000])


@pytest.mark.parametrize("window", [1, 64, 100])
def test_window(target, seed, window):
    check(kernel_of(Problem(query_tokens=2), mask=(Causal(), SlidingWindow(window=window))), target, seed, window=window)


def test_soft_cap_before_the_mask(target, seed):
    check(kernel_of(Problem(), score=(SoftCap(cap=2.0),)), target, seed, soft_cap=2.0)


def test_all_schedules_give_the_same_bits():
    problem = make_decode_problem([100, 1, 900, 64], head_dim=64)
    kernel = kernel_of(Problem(head_dim=64))
    results = set()
    for seed in range(6):
        out, _ = tle_attn.plan(kernel, batch=4, query_heads=8, kv_heads=1, target="cpu", seed=seed).run(
            problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens
        )
        results.add(out.view(torch.int16).numpy().tobytes())
    assert len(results) == 1


class TestResources:
    def test_the_text_takes_what_the_spec_says(self):
        """Shared buffers of the spec are the allocations of the emulated launch."""
        from tle_attn import emu

        kernel = kernel_of(Problem(query_tokens=2))
        seen = []
        launch = emu.launch

        def watch(*args, **kwargs):
            seen.append(launch(*args, **kwargs))
            return seen[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(emu, "launch", watch)
            check(kernel, "cpu", 0, lengths=[100])
        assert seen[-1].shared_bytes == sum(b.nbytes for b in kernel.resources.buffers)

    def test_more_stages_than_fit(self):
        with pytest.raises(ResourceError, match="bytes of shared memory"):
            kernel_of(Problem(), ring=MbarrierRing(stages=4))
        kernel_of(Problem(), ring=MbarrierRing(stages=4), ctas_per_sm=1)


class TestSettledOptions:
    """What is left open follows the schedule and what fits; what is said and has no effect is refused."""

    def test_follow_the_schedule(self):
        planned, static = kernel_of(Problem()).mainloop, kernel_of(Problem(), schedule=StaticSplit()).mainloop
        assert (planned.loader.evict_first, planned.reduce.poll_above) == (True, 1)
        assert (static.loader.evict_first, static.reduce.poll_above) == (False, 0)

    def test_a_reducer_of_another_kind_needs_no_options_of_this_one(self):
        @frozen(kw_only=True)
        class Own(Block):
            KIND, POLL_ABOVE, HELPERS = "reduce", 2, False
            poll_above: int | None = None

        assert DecodeMainloop(reduce=Own()).settled(Problem()).reduce == Own(poll_above=2)

    def test_records_hold_page_ids_where_there_are_pages(self):
        paged, contiguous = (kernel_of(Problem(), loader=loader).mainloop.schedule for loader in (PagedTma(), ContiguousTma()))
        assert (paged.page_ids, contiguous.page_ids) == (True, False)
        assert kernel_of(Problem(), schedule=TaskMap(page_ids=False)).mainloop.schedule.page_ids is False
        selected = tle_attn.load("variants/decode_bf16_selected").kernel().mainloop.schedule
        assert selected.page_ids is False, "one map serves layers with lists of their own"

    @pytest.mark.parametrize("dtype,head_dim,tokens,ctas,stages", [
        ("bf16", 128, 1, 2, 3), ("bf16", 128, 5, 2, 2), ("bf16", 64, 1, 2, 6), ("bf16", 128, 1, 1, 6), ("bf16", 256, 1, 2, 1), ("bf16", 128, 1, 4, 1),
        ("fp8", 128, 1, 2, 6), ("fp8", 128, 5, 2, 5), ("fp8", 128, 1, 3, 4),
    ])  # fmt: skip
    def test_ring_as_deep_as_fits(self, dtype, head_dim, tokens, ctas, stages):
        """192 KiB of tiles a multiprocessor, less where queries and P take the room; one stage more does not fit or is more than that."""
        fp8 = {"scale": PerTensor(), "v_operand": Fp8RegisterV()} if dtype == "fp8" else {}
        kernel = kernel_of(Problem(dtype=DType(dtype), head_dim=head_dim, query_tokens=tokens), ctas_per_sm=ctas, **fp8)
        assert kernel.mainloop.ring.stages == stages
        tile = 2 * 64 * head_dim * (1 if dtype == "fp8" else 2)
        deeper = ctas * (stages + 1) * tile > 192 << 10
        if not deeper:
            with pytest.raises(ResourceError, match="too many"):
                kernel_of(kernel.problem, ctas_per_sm=ctas, ring=MbarrierRing(stages=stages + 1), **fp8)

    @pytest.mark.parametrize("slots,key", [({"loader": PagedTma(evict_first=True)}, "loader.evict_first"), ({"reduce": SplitMerge(poll_above=3)}, "reduce.poll_above")])
    def test_without_effect_under_a_static_split(self, slots, key):
        with pytest.raises(SpecError, match=f"{key}: static_split makes no use of {key}"):
            kernel_of(Problem(), schedule=StaticSplit(), **slots)
        kernel_of(Problem(), **slots)


def leaving_tiles(monkeypatch, recipe, share) -> list[dict[str, set[tuple[int, int]]]]:
    """(sequence, tile) pairs of two launches whose K and whose V leave the L2 cache first, where it cannot keep `share` of 16."""
    kernel = tle_attn.load(recipe).set({"schedule.min_tokens": 64}).kernel()
    problem = problem_for(kernel, [32 * 64, 16 * 64], 1)
    plan = tle_attn.plan(kernel, **problem.geometry, target="cpu")
    monkeypatch.setattr(type(plan), "l2_tiles", (48 - 3 * share) * kernel.problem.dtype.nbytes)
    module, hints, launches = plan.executor.module, [], []
    keep_or_drop = module.keep_or_drop

    def watched(tile, seq, flags):
        keep_or_drop(tile, seq, flags)
        if hints.pop():
            launches[-1][sys._getframe(1).f_code.co_name].add((int(seq), int(tile)))

    monkeypatch.setattr(module, "evict_first", lambda yes: hints.append(bool(yes)))
    monkeypatch.setattr(module, "keep_or_drop", watched)
    for _ in range(2):
        launches.append({"load_keys": set(), "load_values": set()})
        plan.schedule(**problem.lengths)
        plan.run(**problem.inputs, out=problem.new_output())
    monkeypatch.undo()
    return launches


@pytest.mark.parametrize("recipe", ["hy3/decode_fp8", "variants/decode_bf16_contiguous"])
def test_tiles_that_the_l2_cache_cannot_keep(monkeypatch, recipe):
    """The same tiles of K and V in each launch leave the cache first, evenly spread; one sixteenth more leaves the others as they are."""
    before: set[tuple[int, int]] = set()
    for share in (0, 1, 5, 6, 11, 16):
        first, second = leaving_tiles(monkeypatch, recipe, share)
        leaving = first["load_keys"]
        assert leaving == first["load_values"] == second["load_keys"] == second["load_values"]
        for seq, tiles in ((0, 32), (1, 16)):
            for start in range(tiles - 7):
                assert abs(sum((seq, start + i) in leaving for i in range(8)) - share / 2) < 1
        assert len(leaving) == 3 * share and before <= leaving
        before = leaving
