"""Broken kernel texts: every mutant of the decode kernel is reported in every schedule tried, and the text as it is in none."""

import pytest
import torch

from tests.checks.mutants import load_mutant, mutated
from tle_attn.codegen import generate
from tle_attn.components.mainloops.decode import DecodeMainloop
from tle_attn.components.reducers.split_merge import SplitMerge
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.components.schedulers.task_map import TaskMap
from tle_attn.emu import EmulationError
from tle_attn.runtime.decode import DecodePlan
from tle_attn.runtime.executors import EmulatedExecutor
from tle_attn.spec import Kernel, Problem
from tle_attn.spec.tasks import IDLE
from tle_attn.testing import DecodeProblem, make_decode_problem

SCHEDULES = 6
KERNEL = Kernel(
    name="mutants",
    problem=Problem(head_dim=64, page=32),
    mainloop=DecodeMainloop(ring=MbarrierRing(stages=2), schedule=TaskMap(min_tokens=64), reduce=SplitMerge(poll_above=2, slice_above=4)),
)
#: (lengths, multiprocessors of two CTAs): tasks of 7 tiles, the last not full; two parts, which the last arriver merges; six parts, which poll and merge slices
RINGS, FEW, MANY = ([7 * 64 - 3] * 2, 1), ([100], 1), ([6 * 64], 3)

#: name: (batch, text, what it becomes, kinds of report)
MUTANTS = {
    "no acquire": (RINGS, "    barrier_wait(empty[i % STAGES], i // STAGES)", "    pass", {"Race", "BarrierMisuse"}),
    "acquire a use too early": (RINGS, "barrier_wait(empty[i % STAGES], i // STAGES)", "barrier_wait(empty[i % STAGES], i // STAGES - (i >= STAGES))", {"Race", "BarrierMisuse"}),
    "acquire a use too late": (RINGS, "barrier_wait(empty[i % STAGES], i // STAGES)", "barrier_wait(empty[i % STAGES], i // STAGES + 1)", {"Deadlock", "BarrierMisuse"}),
    "no wait for a tile": (RINGS, "        barrier_wait(full[(i % STAGES) * COPIES + c], i // STAGES)", "        pass", {"Race", "Unwritten", "BarrierMisuse"}),
    "wait for all boxes but one": (RINGS, "for c in static_range(COPIES):", "for c in static_range(COPIES - 1):", {"Race", "Unwritten", "BarrierMisuse"}),
    "wait for the first use always": (RINGS, "barrier_wait(full[(i % STAGES) * COPIES + c], i // STAGES)", "barrier_wait(full[(i % STAGES) * COPIES + c], 0)", {"Race", "BarrierMisuse"}),
    "wait for the next use": (RINGS, "barrier_wait(full[(i % STAGES) * COPIES + c], i // STAGES)", "barrier_wait(full[(i % STAGES) * COPIES + c], i // STAGES + 1)", {"Deadlock", "BarrierMisuse"}),
    "no release": (RINGS, "    barrier_arrive(empty[i % STAGES])", "    pass", {"Deadlock"}),
    "two releases": (RINGS, "    barrier_arrive(empty[i % STAGES])", "    barrier_arrive(empty[i % STAGES])\n    barrier_arrive(empty[i % STAGES])", {"BarrierMisuse", "Race"}),
    "release of another slot": (RINGS, "barrier_arrive(empty[i % STAGES])", "barrier_arrive(empty[0])", {"BarrierMisuse", "Race", "Deadlock"}),
    "slots start in use": (RINGS, "k_empty = alloc_barriers(STAGES, READERS, init=READY, more=True)", "k_empty = alloc_barriers(STAGES, READERS, more=True)", {"Deadlock"}),
    "copy into another slot": (RINGS, "copy(desc, boxes.slot(box)", "copy(desc, boxes.slot(box % (COLUMN_BLOCKS * TILE_PAGES))", {"Race", "Unwritten", "BarrierMisuse"}),
    "copy completes another barrier": (RINGS, "barrier=full[box])", "barrier=full[(box + 1) % (STAGES * COPIES)])", {"BarrierMisuse", "Race", "Deadlock", "Unwritten"}),
    "scores used before the wait": (RINGS, "s = wgmma_wait(0, qk_product(k_ring.slot(0), q_smem))", "s = qk_product(k_ring.slot(0), q_smem)", {"UseBeforeWait", "Race"}),
    "product never waited for": (RINGS, "wgmma_wait(0, pv_product(v, p_tile, o))", "pv_product(v, p_tile, o)", {"UseBeforeWait"}),
    "one group left running": (RINGS, "product, s = wgmma_wait(0, (product, s))", "product, s = wgmma_wait(1, (product, s))", {"UseBeforeWait", "Race"}),
    "K slot released before the scores are done": (
        RINGS, "s = wgmma_wait(0, qk_product(k_ring.slot(0), q_smem))\n        release(k_empty, 0)",
        "s = qk_product(k_ring.slot(0), q_smem)\n        release(k_empty, 0)\n        s = wgmma_wait(0, s)", {"Race"},
    ),
    "V slot released before the product is done": (
        RINGS, "product, s = wgmma_wait(0, (product, s))\n            o = add_product(product)\n            release(v_empty, i)",
        "release(v_empty, i)\n            product, s = wgmma_wait(0, (product, s))\n            o = add_product(product)", {"Race"},
    ),
    "no fence after P": (RINGS, "    emu.ops.fence_async()\n", "", {"MissingProxyFence"}),
    "no fence after the queries": (RINGS, "smem_store(q_smem, tile)\n    fence_async()", "smem_store(q_smem, tile)", {"MissingProxyFence"}),
    "relaxed last arriver": (FEW, "ticket = atomic_add(counter, 1)", 'ticket = atomic_add(counter, 1, sem="relaxed")', {"Race"}),
    "last arriver without acquire": (FEW, "ticket = atomic_add(counter, 1)", 'ticket = atomic_add(counter, 1, sem="release")', {"Race"}),
    "last arriver without release": (FEW, "ticket = atomic_add(counter, 1)", 'ticket = atomic_add(counter, 1, sem="acquire")', {"Race"}),
    "one arrival early": (FEW, "if ticket == arrivals - 1:", "if ticket == arrivals - 2:", {"Race", "Unwritten", "counters"}),
    "last arriver leaves the counter": (FEW, "        store(counter, 0)\n", "", {"counters"}),
    "relaxed arrival": (MANY, "arrive_release(counter)", 'atomic_add(counter, 1, sem="relaxed")', {"Race"}),
    "no wait for the partials": (MANY, "        wait_at_least(counter, splits)\n", "", {"Race", "Unwritten"}),
    "wait for one partial too few": (MANY, "wait_at_least(counter, splits)", "wait_at_least(counter, splits - 1)", {"Race", "Unwritten"}),
    "wait for one partial too many": (MANY, "wait_at_least(counter, splits)", "wait_at_least(counter, splits + 1)", {"Deadlock"}),
    "plain read of the counter": (MANY, "wait_at_least(counter, splits)", "while load(counter) < splits:\n            role_sync()", {"Race", "Deadlock"}),
    "counters not reset": (MANY, "        reset_after(counter, ticket, mergers - 1)\n", "", {"counters"}),
    "counters reset by the first": (MANY, "reset_after(counter, ticket, mergers - 1)", "reset_after(counter, ticket, 0)", {"BarrierMisuse", "Race"}),
}  # fmt: skip


class Runner:
    """One batch on an emulated device of `sms` multiprocessors; the workspace is shared by its launches."""

    def __init__(self, lengths: list[int], sms: int, text: str | None = None, folder=None, arithmetic: bool = False):
        self.problem: DecodeProblem = make_decode_problem(lengths, heads=(8, 1), head_dim=64, page=32)
        self.executor = EmulatedExecutor(KERNEL, tle=False)
        self.executor.SMS, self.executor.arithmetic = sms, arithmetic
        if text is not None:
            self.executor.module = load_mutant(text, folder)
        self.plan = DecodePlan(kernel=KERNEL, batch=len(lengths), query_heads=8, kv_heads=1, target="cpu", device=torch.device("cpu"), executor=self.executor)
        self.plan.schedule(**self.problem.lengths)

    def run(self, seed: int) -> torch.Tensor:
        self.executor.seed = seed
        p = self.problem
        return self.plan.run(p.q, p.k_cache, p.v_cache, p.block_ids, p.kv_lens, scheduled=True)[0]

    def verdict(self, seed: int) -> str:
        """Kind of report, "counters" where they are not zero afterwards, or "accepted"."""
        self.plan.reset()
        try:
            self.run(seed)
        except EmulationError as error:
            return type(error).__name__
        return "counters" if self.plan.workspace["counters"].any() else "accepted"


@pytest.fixture(scope="module")
def text() -> str:
    return generate(KERNEL, "cpu").text


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_reported_in_every_schedule(name, text, tmp_path):
    (lengths, sms), old, new, kinds = MUTANTS[name]
    runner = Runner(lengths, sms, mutated(text, old, new), tmp_path)
    verdicts = {runner.verdict(seed) for seed in range(SCHEDULES)}
    assert verdicts <= kinds, verdicts


@pytest.mark.parametrize("batch", [RINGS, FEW, MANY], ids=["rings", "few parts", "many parts"])
def test_the_text_as_it_is_is_accepted(batch):
    runner = Runner(*batch)
    assert {runner.verdict(seed) for seed in range(20)} == {"accepted"}


def test_a_hundred_schedules_give_the_same_bits():
    """Rings that wrap, a merge by the last arriver and one by polling, in one launch: parts of 3 tiles of sequences of 9, 2 and 4 tiles."""
    runner = Runner([9 * 64 - 7, 2 * 64, 4 * 64], 3, arithmetic=True)
    assert [r[6] for r in runner.plan.records.tolist() if r[4] != IDLE] == [3, 3, 3, 1, 2, 2]
    bits = {runner.run(seed).view(torch.int16).numpy().tobytes() for seed in range(100)}
    assert len(bits) == 1
    expected, _ = runner.problem.reference()
    out = runner.run(0)
    assert (out.double() - expected).norm() < 4e-3 * expected.norm()
