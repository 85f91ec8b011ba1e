"""Broken texts of the prefill kernels: every mutant is reported in every schedule tried, and the texts as they are in none."""

import pytest
import torch
from attrs import evolve

from tests.checks.mutants import load_mutant, mutated
from tle_attn.codegen import generate
from tle_attn.components.mainloops.prefill import PrefillMainloop
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.components.scales.per_token_head import PerTokenHead
from tle_attn.components.v_operand.fp8_transpose import Fp8Transpose
from tle_attn.emu import EmulationError
from tle_attn.random_problems import prefill_problem_for
from tle_attn.runtime.executors import EmulatedExecutor
from tle_attn.runtime.prefill import PrefillPlan
from tle_attn.spec import DType, Kernel, Problem

SCHEDULES = 5
#: units of 6, 5, 4 and 1 key tiles on one CTA, two heads each, whose last tiles are not full; and six without keys, for which no other barrier keeps the records
PAIRS = ((200, 700), (100, 450), (70, 60), (300, 0))

#: V as it lies, Q in shared memory, no turns; V transposed, Q in registers, a scale for every key, turns
BF16 = Kernel(name="bf16", problem=Problem(head_dim=64, group=2), mainloop=PrefillMainloop(ring=MbarrierRing(stages=2)))
FP8 = Kernel(
    name="fp8",
    problem=Problem(group=2, dtype=DType.FP8),
    mainloop=PrefillMainloop(ring=MbarrierRing(stages=2), scale=PerTokenHead(), v_operand=Fp8Transpose(), consumer_registers=224, producer_registers=64),
)
#: the same with the products of halves of the head elements, added in fp32
FP32_SUMS = evolve(FP8, name="fp32 sums", mainloop=evolve(FP8.mainloop, v_operand=Fp8Transpose(sums="fp32")))

#: name: (text, what it becomes, kinds of report); of the bf16 kernel
SHARED = {
    "no acquire": ("    barrier_wait(empty[i % STAGES], i // STAGES)", "    pass", {"Race", "BarrierMisuse"}),
    "acquire a use too early": ("barrier_wait(empty[i % STAGES], i // STAGES)", "barrier_wait(empty[i % STAGES], i // STAGES - (i >= STAGES))", {"Race", "BarrierMisuse"}),
    "acquire a use too late": ("barrier_wait(empty[i % STAGES], i // STAGES)", "barrier_wait(empty[i % STAGES], i // STAGES + 1)", {"Deadlock", "BarrierMisuse"}),
    "no wait for a tile": ("    barrier_wait(full[i % STAGES], i // STAGES)", "    pass", {"Race", "Unwritten", "BarrierMisuse"}),
    "wait for the next use of a tile": ("barrier_wait(full[i % STAGES], i // STAGES)", "barrier_wait(full[i % STAGES], i // STAGES + 1)", {"Deadlock", "BarrierMisuse"}),
    "no release": ("    barrier_arrive(empty[i % STAGES])", "    pass", {"Deadlock"}),
    "two releases": ("    barrier_arrive(empty[i % STAGES])", "    barrier_arrive(empty[i % STAGES])\n    barrier_arrive(empty[i % STAGES])", {"BarrierMisuse", "Race"}),
    "release of another slot": ("barrier_arrive(empty[i % STAGES])", "barrier_arrive(empty[0])", {"BarrierMisuse", "Race", "Deadlock"}),
    "no wait for the V tile of a step": ("    wait_slot(v_full, i - 1)\n", "", {"Race", "Unwritten"}),
    "V tile of the wrong step": ("    wait_slot(v_full, i - 1)\n", "    wait_slot(v_full, i)\n", {"Race", "Unwritten", "Deadlock", "BarrierMisuse"}),
    "no wait for the last V tile": ("            wait_slot(v_full, end)\n", "", {"Race", "Unwritten"}),
    "K freed before its product": ("    s = wgmma_wait(1, s)\n", "    s = wgmma_wait(2, s)\n", {"UseBeforeWait", "Race"}),
    "V freed before its product": ("    o = end_pv(product)\n    release(v_empty, i - 1)\n", "    release(v_empty, i - 1)\n    o = end_pv(product)\n", {"Race"}),
    "the last V tile is kept": ("            release(v_empty, end)\n", "", {"Deadlock", "BarrierMisuse"}),
    "the last product is not waited for": ("    return (wgmma_wait(0, product),)", "    return (product,)", {"UseBeforeWait", "Race"}),
    "no wait for the queries": ("    barrier_wait(full[w], item)\n", "", {"Race", "Unwritten"}),
    "queries overwritten": ("    barrier_wait(empty[w], item)\n", "", {"Race", "BarrierMisuse"}),
    "queries kept": ("        barrier_arrive(empty[w])\n", "        pass\n", {"Deadlock"}),
    "queries freed after the first product": ("    if first == Q_REGISTERS:\n", "    if first:\n", {"Race"}),
    "no wait for a record": ("        barrier_wait(work_full[item % RECORDS], item // RECORDS)\n", "", {"Race", "Unwritten"}),
    "a record is overwritten": ("    barrier_wait(empty[item % RECORDS], item // RECORDS)\n", "", {"Race", "BarrierMisuse"}),
    "a record is kept": ("        barrier_arrive(work_empty[item % RECORDS])\n", "", {"Deadlock"}),
    "a record is not published": ("    barrier_arrive(full[item % RECORDS])\n", "", {"Deadlock"}),
    "one consumer frees a K slot": ("k_empty = alloc_barriers(STAGES, CONSUMERS, init=READY)", "k_empty = alloc_barriers(STAGES, init=READY)", {"Race", "BarrierMisuse"}),
    "three consumers free a K slot": ("k_empty = alloc_barriers(STAGES, CONSUMERS, init=READY)", "k_empty = alloc_barriers(STAGES, CONSUMERS + 1, init=READY)", {"Deadlock"}),
    "one consumer frees a record": ("work_empty = alloc_barriers(RECORDS, CONSUMERS, init=READY", "work_empty = alloc_barriers(RECORDS, init=READY", {"Race", "BarrierMisuse"}),
    "K slots start in use": ("k_empty = alloc_barriers(STAGES, CONSUMERS, init=READY)", "k_empty = alloc_barriers(STAGES, CONSUMERS)", {"Deadlock"}),
    "too few bytes of K": ("k_full = alloc_barriers(STAGES, COPIES, expect_bytes=BOX_BYTES", "k_full = alloc_barriers(STAGES, COPIES, expect_bytes=BOX_BYTES // 2", {"BarrierMisuse"}),
    "too many bytes of K": ("k_full = alloc_barriers(STAGES, COPIES, expect_bytes=BOX_BYTES", "k_full = alloc_barriers(STAGES, COPIES, expect_bytes=BOX_BYTES * 2", {"Deadlock"}),
    "too few bytes of Q": ("expect_bytes=Q_BYTES", "expect_bytes=Q_BYTES // 2", {"BarrierMisuse"}),
    "too few copies of K": ("k_full = alloc_barriers(STAGES, COPIES", "k_full = alloc_barriers(STAGES, COPIES - 1", {"BarrierMisuse", "Race", "Unwritten"}),
    "too many copies of K": ("k_full = alloc_barriers(STAGES, COPIES", "k_full = alloc_barriers(STAGES, COPIES + 1", {"Deadlock"}),
}  # fmt: skip
DIRECT = {
    "cleared before V has come": ("                wait_slot(v_full, done)\n", "", {"Race", "Unwritten"}),
    "V is not cleared for both": ("    named_wait(both[0])\n", "", {"Race"}),
    "cleared rows are not fenced": ("        fence_async()\n    named_wait(both[0])", "    named_wait(both[0])", {"MissingProxyFence"}),
}  # fmt: skip
TRANSPOSED = {
    "Q freed right after its read": (
        "            s = wgmma_wait(0, qk_rows(q, k_ring.slot(slot_of(done))))\n            give_queries_back(q_empty, w, True)\n",
        "            give_queries_back(q_empty, w, True)\n            s = wgmma_wait(0, qk_rows(q, k_ring.slot(slot_of(done))))\n", {"UnsettledRead"},
    ),
    "V^T is not fenced": ("    fence_async()\n    release(v_empty, i)\n", "    release(v_empty, i)\n", {"MissingProxyFence", "UnsettledRead"}),
    "V read before it has come": ("    wait_slot(v_full, i)\n", "", {"Race", "Unwritten"}),
    "V^T overwritten": ("    acquire(vt_empty, i)\n", "", {"Race", "BarrierMisuse"}),
    "V^T is not published": ("    barrier_arrive(vt_full[slot_of(i)])\n", "", {"Deadlock"}),
    "V^T freed by one consumer": ("vt_empty = alloc_barriers(STAGES, CONSUMERS, init=READY", "vt_empty = alloc_barriers(STAGES, init=READY", {"Race", "BarrierMisuse"}),
    "no wait for the scales": ("    barrier_wait(scales_full[slot_of(i)], use_of(i))\n", "", {"Race", "Unwritten"}),
    "scales are not published": ("            barrier_arrive(scales_full[slot])\n", "", {"Deadlock"}),
    "K freed before its scales are read": ("    s = s * smem_load_cols(k_scales.slot(slot_of(i)), s)[None, :]\n    release(k_empty, i)\n", "    release(k_empty, i)\n    s = s * smem_load_cols(k_scales.slot(slot_of(i)), s)[None, :]\n", {"Race"}),
    "nobody has the first turn": ("        named_arrive(turn[0])\n", "        pass\n", {"Deadlock"}),
    "the wrong consumer has the first turn": ("        named_arrive(turn[0])\n", "        named_arrive(turn[1])\n", {"Deadlock", "BarrierMisuse"}),
    "a turn is kept": ("    named_arrive(turn[1 - w])\n", "", {"Deadlock"}),
    "a turn is given to oneself": ("named_arrive(turn[1 - w])", "named_arrive(turn[w])", {"Deadlock", "BarrierMisuse"}),
    "nobody waits for a turn": ("    larger = named_wait_for(turn[w], larger)\n", "", {"Deadlock", "BarrierMisuse"}),
}  # fmt: skip
SUMS = {
    "the product of the even elements is not waited for": ("even = wgmma_wait(0, product)", "even = product", {"UseBeforeWait", "UnsettledRead"}),
    "the product of the odd elements is not waited for": ("odd = wgmma_wait(0, product)", "odd = product", {"UseBeforeWait", "UnsettledRead"}),
    "V^T freed before its last product": ("    o = end_pv(o, product)\n    release(v_empty, i - 1)\n", "    release(v_empty, i - 1)\n    o = end_pv(o, product)\n", {"Race", "UnsettledRead"}),
}  # fmt: skip
MUTANTS = [(BF16, m) for m in (SHARED | DIRECT).items()] + [(FP8, m) for m in TRANSPOSED.items()] + [(FP32_SUMS, m) for m in SUMS.items()]


class Runner:
    """The batch on an emulated device of one multiprocessor, without arithmetic."""

    def __init__(self, kernel: Kernel, module: object | None = None):
        self.problem = prefill_problem_for(kernel, PAIRS, seed=1)
        self.executor = EmulatedExecutor(kernel, tle=False)
        self.executor.SMS, self.executor.arithmetic = 1, False
        if module is not None:
            self.executor.module = module
        self.plan = PrefillPlan(kernel=kernel, **self.problem.geometry, target="cpu", device=torch.device("cpu"), executor=self.executor)
        self.plan.schedule(**self.problem.lengths)

    def verdict(self, seed: int) -> str:
        """Kind of report, or "accepted"."""
        self.plan.reset()
        self.executor.seed = seed
        try:
            self.plan.run(**self.problem.inputs, scheduled=True)
        except EmulationError as error:
            return type(error).__name__
        return "queue" if self.plan.workspace["queue"].any() else "accepted"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {kernel.name: generate(kernel, "cpu").text for kernel in (BF16, FP8, FP32_SUMS)}


@pytest.mark.parametrize("kernel,mutant", MUTANTS, ids=[f"{kernel.name}-{name}" for kernel, (name, _) in MUTANTS])
def test_mutant_is_reported_in_every_schedule(kernel, mutant, texts, tmp_path):
    old, new, kinds = mutant[1]
    runner = Runner(kernel, load_mutant(mutated(texts[kernel.name], old, new), tmp_path))
    verdicts = {runner.verdict(seed) for seed in range(SCHEDULES)}
    assert verdicts <= kinds, verdicts


@pytest.mark.parametrize("kernel", [BF16, FP8, FP32_SUMS], ids=lambda k: k.name)
def test_the_text_as_it_is_is_accepted(kernel):
    runner = Runner(kernel)
    assert {runner.verdict(seed) for seed in range(10)} == {"accepted"}
