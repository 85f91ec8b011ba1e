"""Plans behind operators: made once a geometry, sharing kernels, owning no memory; counters apart for each stream and kept for captured graphs."""

import gc
import weakref

import pytest
import torch

from tle_attn import ops
from tle_attn.errors import InputError, TleAttnError
from tle_attn.ops import plans
from tle_attn.runtime.executors import EmulatedExecutor
from tle_attn.testing import make_decode_problem

CPU = torch.device("cpu")
OPS = torch.ops.tle_attn


def plan(scales="none", query_tokens=1, page=64, batch=2, query_heads=8, kv_heads=1, planned=True, split=True):
    return plans.plan_for(scales, query_tokens, page, batch, query_heads, kv_heads, planned, split, CPU, "cpu")


def call(problem, **options):
    return OPS.attention_decode_bf16(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens, **options)


class TestKernels:
    @pytest.mark.parametrize("scales", plans.RECIPES)
    @pytest.mark.parametrize("static", [None, (16, 512), (1, 512)])
    def test_every_geometry_fits_twice(self, scales, static):
        """Task maps count on it: pages, groups and query tokens of the whole range."""
        for query_tokens, group, page in ((1, 1, 16), (1, 16, 64), (5, 1, 128), (5, 8, 32), (4, 16, 64), (5, 12, 64), (3, 7, 16)):
            kernel = plans.kernel_for(scales, query_tokens, page, group, static)
            assert kernel.resources.ctas_per_sm >= plans.CTAS_PER_SM
            assert kernel.mainloop.schedule.PLANNED is (static is None)

    def test_static_split(self):
        assert [plans.split_of(batch, True) for batch in (1, 32, 33, 500)] == [(16, 512), (16, 512), (4, 4096), (4, 4096)]
        assert plans.split_of(1, False)[0] == 1
        schedule = plan(planned=False, batch=40).kernel.mainloop.schedule
        assert (schedule.splits, schedule.min_tokens) == (4, 4096)

    def test_what_no_kernel_serves(self):
        with pytest.raises(InputError, match="k_cache: page cannot be 256; allowed: .16, 32, 64, 128."):
            plan(page=256)
        with pytest.raises(InputError, match="q: 5 query tokens x 16 heads are 80 query rows; allowed: query_tokens . group <= 64"):
            plan(query_tokens=5, query_heads=16)

    def test_planner_does_not_depend_on_type_page_or_group(self):
        """Its text below the constants is that of every kernel which uses its records."""
        from tle_attn.codegen import generate

        def text(kernel):
            source = generate(kernel, "cpu").text
            return source[source.index("# ---- schedule") :].split("# ---- ")[1:]

        planner = plans.planner_for(1, 64, 2, 1, CPU, "cpu").kernel
        own = [part for part in text(planner) if "def plan_tasks" in part]
        for scales in plans.RECIPES:
            assert own == [part for part in text(plans.kernel_for(scales, 2, 16, 4, None)) if "def plan_tasks" in part]


class TestPlans:
    def test_are_kept(self):
        assert plan() is plan()
        assert plan() is not plan(batch=3)

    def test_batches_share_an_executor(self):
        assert plan(batch=2).executor is plan(batch=300).executor

    def test_own_no_memory(self):
        assert plan().workspace == {} and plan().workspace_bytes == 0

    def test_task_maps_count_on_no_more_ctas_than_are_resident(self, monkeypatch):
        assert plan().slots == plans.task_slots(CPU, "cpu") == 12
        monkeypatch.setattr(EmulatedExecutor, "resident_ctas", lambda *_: 7)
        with pytest.raises(TleAttnError, match="7 CTAs are resident at once where task maps count on 12"):
            plan(batch=77)
        plan(batch=77, planned=False)

    def test_second_call_makes_nothing_new(self, emulated, problem):
        tasks = ops.new_task_map(2, 1)
        OPS.plan_decode_tasks(problem.kv_lens, tasks, 1)
        for options in ({}, {"tasks": tasks}):
            call(problem, **options)
            made = [f.cache_info().misses for f in (plans.plan_for, plans.planner_for, plans.executor_for, plans.kernel_for)]
            counters = plans.counters_of(CPU).of_current_stream(1).data_ptr()
            for _ in range(2):
                call(problem, **options)
            assert made == [f.cache_info().misses for f in (plans.plan_for, plans.planner_for, plans.executor_for, plans.kernel_for)]
            assert counters == plans.counters_of(CPU).of_current_stream(1).data_ptr()

    def test_workspace_is_given_back(self, emulated, problem):
        """Only outputs and counters outlive a call."""
        kept = []
        original = plans.workspace_of

        def workspace_of(*arguments):
            made = original(*arguments)
            kept.extend(weakref.ref(made[name]) for name in ("partial_o", "partial_ml"))
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plans, "workspace_of", workspace_of)
            call(problem)
        gc.collect()
        assert len(kept) == 2 and not any(ref() is not None for ref in kept)

    def test_counters_are_zero_again(self, emulated):
        long = make_decode_problem([2000, 1500])
        tasks = ops.new_task_map(2, 1)
        OPS.plan_decode_tasks(long.kv_lens, tasks, 1, min_tokens=64)
        for options in ({}, {"tasks": tasks}):
            call(long, **options)
            assert not any(chunk.any() for chunk in plans.counters_of(CPU).chunks)


class Stream:
    def __init__(self, cuda_stream: int):
        self.cuda_stream = cuda_stream

    def synchronize(self) -> None:
        pass


class TestCounters:
    @pytest.fixture
    def counters(self, monkeypatch):
        """Counters of a GPU with two streams, in host memory."""
        made = plans.Counters(torch.device("cuda", 0))
        zeros = torch.zeros
        monkeypatch.setattr(torch, "zeros", lambda *shape, device, **options: zeros(*shape, **options))
        return made

    def on(self, monkeypatch, stream: int) -> None:
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(stream))

    def capture(self, monkeypatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)

    def test_streams_do_not_share(self, counters, monkeypatch):
        self.on(monkeypatch, 1)
        first = counters.of_current_stream(10)
        assert counters.of_current_stream(10) is first
        self.on(monkeypatch, 2)
        second = counters.of_current_stream(10)
        first.fill_(1), second.fill_(2)
        assert (first == 1).all() and len(counters.chunks) == 1

    def test_growing_keeps_what_graphs_may_hold(self, counters, monkeypatch):
        self.on(monkeypatch, 1)
        small = counters.of_current_stream(10)
        large = counters.of_current_stream(5000)
        assert large.numel() >= 5000 and large.data_ptr() != small.data_ptr()
        address, chunk = small.data_ptr(), weakref.ref(counters.chunks[0])
        del small, large
        huge = counters.of_current_stream(plans.Counters.CHUNK * 2)
        gc.collect()
        assert huge.numel() >= plans.Counters.CHUNK * 2 and chunk() is not None
        assert chunk().data_ptr() <= address < chunk().data_ptr() + 4 * chunk().numel()

    def test_a_new_stream_in_a_capture_takes_from_the_reserve(self, counters, monkeypatch):
        self.on(monkeypatch, 1)
        counters.of_current_stream(10)
        self.capture(monkeypatch)
        self.on(monkeypatch, 2)
        assert not counters.of_current_stream(10).any()

    def test_nothing_is_zeroed_in_a_capture(self, counters, monkeypatch):
        self.on(monkeypatch, 1)
        self.capture(monkeypatch)
        with pytest.raises(TleAttnError, match="which a CUDA graph cannot capture; call the operator once with this geometry before the capture"):
            counters.of_current_stream(10)

    def test_nothing_is_compiled_in_a_capture(self, monkeypatch):
        kernel = plans.kernel_for("none", 1, 64, 8, (7, 512))
        self.capture(monkeypatch)
        with pytest.raises(TleAttnError, match="hy3/decode_bf16 is compiled and loaded at its first call, which a CUDA graph cannot capture"):
            plans.executor_for(kernel, CPU, "cpu")
