"""Cluster merge: whole kernels against the float64 oracle, every size, with and without clusters to merge; permuted schedules; mutants of the exchange."""

import pytest
import torch

import tle_attn
from tests.cases.helpers import check, kernel_of, launch, plan_for, problem_for
from tle_attn.codegen import generate
from tle_attn.components.mainloops.decode import DecodeMainloop
from tle_attn.components.reducers.cluster_merge import ClusterMerge
from tle_attn.components.schedulers.static_split import StaticSplit
from tle_attn.emu import EmulationError
from tle_attn.errors import SpecError, TargetUnavailable
from tle_attn.runtime.executors import EmulatedExecutor, import_generated
from tle_attn.spec import Kernel, Problem

RECIPE = "variants/decode_bf16_cluster"
#: no key, one tile (unsplit), two parts, parts that differ, as many as the longest split has
LENGTHS = (0, 1, 64, 65, 130, 640, 1500)


@pytest.mark.parametrize("size,splits", [(2, 2), (2, 4), (4, 4), (4, 16), (8, 8), (8, 16)])
@pytest.mark.parametrize("tokens", [1, 2])
def test_against_the_oracle(seed, size, splits, tokens):
    options = {"reduce.size": size, "schedule.splits": splits, "mainloop.ctas_per_sm": 1}
    kernel = kernel_of(RECIPE, options, query_tokens=tokens)
    problem = problem_for(kernel, LENGTHS, kv_heads=2, seed=seed)
    check(kernel, problem, launch(plan_for(kernel, problem, seed=seed), problem))


def test_fp8(seed):
    """Head elements come out of the product in an order of their own."""
    kernel = tle_attn.load("hy3/decode_fp8").set({"schedule.block": "static_split", "schedule.splits": 8, "schedule.min_tokens": 64, "reduce.block": "cluster_merge"}).kernel()
    problem = problem_for(kernel, LENGTHS, seed=seed)
    check(kernel, problem, launch(plan_for(kernel, problem, seed=seed), problem))


@pytest.mark.parametrize("splits", [4, 8])
def test_thirty_schedules_give_the_same_bits(splits, seed):
    kernel = kernel_of(RECIPE, {"schedule.splits": splits})
    problem = problem_for(kernel, (600, 0, 130), seed=seed)
    plan = plan_for(kernel, problem)
    found = set()
    for schedule in range(30):
        plan.executor.seed = schedule
        found.add(launch(plan, problem)[0].view(torch.int16).numpy().tobytes())
    assert len(found) == 1 and not plan.workspace["counters"].any()


#: {what: (text, what it becomes, kinds of report)}
MUTANTS = {
    "no barrier of the cluster": ("    cluster_barrier()\n", "", {"Race"}),
    "waits for one state less": ("live * STATE_BYTES", "(live - 1) * STATE_BYTES", {"BarrierMisuse", "Race", "Unwritten", "Deadlock"}),
    "waits for one state more": ("live * STATE_BYTES", "(live + 1) * STATE_BYTES", {"Deadlock"}),
    "no wait": ("            cluster_push_wait(landed[0], 0, live * STATE_BYTES)\n", "", {"Race", "Unwritten", "BarrierMisuse"}),
    "all push into one slot": ("cluster_push(states.slot(rank)", "cluster_push(states.slot(0)", {"Race", "Unwritten", "BarrierMisuse"}),
    "the second CTA merges": ("if rank == 0:", "if rank == 1:", {"Race", "Unwritten", "BarrierMisuse", "Deadlock"}),
    "sums are not pushed": ("        cluster_push(sums.slot(2 * rank + 1), 0, l, landed[0])\n", "", {"Deadlock"}),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_reported_in_every_schedule(name, tmp_path, seed):
    old, new, kinds = MUTANTS[name]
    kernel = kernel_of(RECIPE)
    text = generate(kernel, "cpu").text
    assert text.count(old) == 1, "the kernel text has changed, so should the mutant"
    file = tmp_path / "mutant.py"
    file.write_text(text.replace(old, new))
    problem = problem_for(kernel, (4 * 64 - 7,), seed=seed)
    plan = plan_for(kernel, problem)
    plan.executor = EmulatedExecutor(kernel, tle=False)
    plan.executor.module = import_generated(file)
    verdicts = set()
    for schedule in range(6):
        plan.executor.seed = schedule
        try:
            launch(plan, problem)
            verdicts.add("accepted")
        except EmulationError as error:
            verdicts.add(type(error).__name__)
    assert verdicts <= kinds


class TestRefused:
    @pytest.mark.parametrize("slots,words", [
        ({}, "cluster_merge needs a static split"), ({"schedule": StaticSplit(splits=6)}, "6 splits are no whole clusters"),
    ])  # fmt: skip
    def test_schedules(self, slots, words):
        with pytest.raises(SpecError, match=words):
            Kernel(name="test", problem=Problem(), mainloop=DecodeMainloop(reduce=ClusterMerge(size=4), **slots))

    def test_sizes(self):
        with pytest.raises(SpecError, match="size cannot be 3"):
            ClusterMerge(size=3)

    @pytest.mark.parametrize("target", ["tle", "tle-emulated"])
    def test_targets(self, target):
        with pytest.raises(TargetUnavailable, match="a barrier of all warps of the cluster"):
            tle_attn.plan(RECIPE, batch=1, query_heads=8, kv_heads=1, target=target)
