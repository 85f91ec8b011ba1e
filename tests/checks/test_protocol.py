"""Protocol exploration: the library is free of faults, broken specs are refused with who waits for what, and the batches hold what they promise."""

import pytest
from attrs import evolve

import tle_attn
from tle_attn.checks import check_protocol, explore
from tle_attn.checks.batches import batches_of, ring_edges
from tle_attn.components.mainloops.decode import DecodeMainloop
from tle_attn.components.reducers.split_merge import SplitMerge
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.components.schedulers.static_split import StaticSplit
from tle_attn.components.schedulers.task_map import TaskMap
from tle_attn.errors import ProtocolError, SpecError
from tle_attn.runtime.decode import DecodePlan
from tle_attn.spec import Kernel, Problem

SMALL = Problem(head_dim=64)


def kernel_of(problem: Problem = SMALL, **slots) -> Kernel:
    return Kernel(name="family/kernel", problem=problem, mainloop=DecodeMainloop(**slots), file="family/kernel.toml")


@pytest.mark.parametrize("name", [name for name in tle_attn.list_recipes() if tle_attn.load(name).kernel().resources.barriers])
def test_the_library_is_free_of_faults(name):
    report = explore(tle_attn.load(name).kernel(), seeds=1)
    assert report.ok, report.failure
    assert report.ctas and report.waits and report.copies and "no fault" in str(report)


def test_a_kernel_without_barriers():
    report = explore(tle_attn.load("merge/stack").kernel())
    assert report.ok and str(report) == "no barriers" and not report.ctas


@pytest.mark.parametrize("slots", [
    {"ring": MbarrierRing(stages=1)}, {"ring": MbarrierRing(stages=2), "schedule": StaticSplit(splits=3)}, {"reduce": SplitMerge(poll_above=0)},
    {"reduce": SplitMerge(poll_above=1), "schedule": TaskMap(min_tokens=64)}, {"ctas_per_sm": 1},
])  # fmt: skip
def test_other_compositions(slots):
    check_protocol(kernel_of(**slots), seeds=2)


@pytest.mark.parametrize("page", [16, 32, 128])
def test_pages(page):
    check_protocol(kernel_of(Problem(head_dim=64, page=page)), seeds=1)


@pytest.mark.parametrize("stages,edges", [(1, (0, 1, 2, 4)), (2, (0, 1, 2, 3, 7)), (3, (0, 1, 2, 3, 4, 10))])
def test_edges_of_the_ring(stages, edges):
    assert ring_edges(kernel_of(ring=MbarrierRing(stages=stages))) == edges


def test_batches_make_the_tasks_that_they_promise(monkeypatch):
    """Unsplit tasks of every edge; merges of few parts, which are shared by rows, and of many, by slices."""
    seen = []
    schedule = DecodePlan.schedule

    def watch(self, *args, **kwargs):
        schedule(self, *args, **kwargs)
        seen.append([r for r in self.records.tolist() if r[4] != -2])

    monkeypatch.setattr(DecodePlan, "schedule", watch)
    kernel = kernel_of()
    report = explore(kernel, seeds=1)
    whole, few, many = seen
    assert {r[2] for r in whole} == set(ring_edges(kernel)) and {r[6] for r in whole} == {1}
    assert kernel.mainloop.reduce.poll_above < max(r[6] for r in few) <= kernel.mainloop.reduce.slice_above
    assert max(r[6] for r in many) > kernel.mainloop.reduce.slice_above and {r[7] & 1 for r in many} == {1}, "all resident, so they poll"
    assert report.polls > 0 and len(batches_of(kernel)) == 3


class TestBrokenSpecs:
    """Fields that only tests set; a recipe cannot."""

    def refused(self, kernel: Kernel, *parts: str) -> None:
        with pytest.raises(ProtocolError) as caught:
            check_protocol(kernel, seeds=1)
        text = str(caught.value)
        assert text.startswith("family/kernel.toml: the barrier protocol of family/kernel is wrong")
        for part in parts:
            assert part in text, text
        assert not explore(kernel, seeds=1).ok

    def test_more_readers_than_there_are(self):
        self.refused(kernel_of(ring=MbarrierRing(readers=2)), "schedule 0: Deadlock: no role can run", "waits for use 1 of", "lacks 1 of 2 arrival(s)")

    def test_half_of_the_bytes_expected(self):
        loader = evolve(DecodeMainloop().loader, expect_scale=0.5)
        self.refused(kernel_of(loader=loader), "BarrierMisuse", "schedule 0")

    def test_twice_the_bytes_expected(self):
        loader = evolve(DecodeMainloop().loader, expect_scale=2.0)
        self.refused(kernel_of(loader=loader), "Deadlock", "byte")

    @pytest.mark.parametrize("option", ["ring.readers", "loader.expect_scale"])
    def test_a_recipe_cannot_set_them(self, option):
        with pytest.raises(SpecError, match="has no option"):
            tle_attn.load("hy3/decode_bf16").set({option: 2}).kernel()
