"""Cluster merge: whole kernels against the float64 oracle, every size, exchange and way to merge, with and without clusters to merge; permuted schedules; mutants."""

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
from tle_attn.runtime.executors import EmulatedExecutor, compile_kernel, import_generated
from tle_attn.spec import Kernel, Problem
from tle_attn.spec.resources import SHARED_BYTES_PER_CTA

RECIPE = "variants/decode_bf16_cluster"
#: no key, one tile (unsplit), two parts, parts that differ, as many as the longest split has
LENGTHS = (0, 1, 64, 65, 130, 640, 1500)


WAYS = [(exchange, merge) for exchange in ("push", "pull") for merge in ("leader", "sharded")]
ways = pytest.mark.parametrize("exchange,merge", WAYS)


@ways
@pytest.mark.parametrize("size,splits,tokens,group", [
    (2, 2, 1, 8), (2, 4, 2, 5), (4, 4, 1, 8), (4, 4, 2, 5), (4, 16, 1, 8), (8, 8, 1, 8), (8, 16, 2, 5), (8, 8, 3, 8),
])  # fmt: skip
def test_against_the_oracle(seed, size, splits, tokens, group, exchange, merge):
    """Rows that fill the tile, and rows that leave some CTAs padding alone to merge."""
    options = {"reduce.size": size, "schedule.splits": splits, "mainloop.ctas_per_sm": 1, "reduce.exchange": exchange, "reduce.merge": merge}
    kernel = kernel_of(RECIPE, options, query_tokens=tokens, group=group)
    problem = problem_for(kernel, LENGTHS, kv_heads=2 if size == 4 else 1, seed=seed)
    check(kernel, problem, launch(plan_for(kernel, problem, seed=seed), problem))


@ways
def test_fp8(seed, exchange, merge):
    """Head elements come out of the product in an order of their own."""
    options = {"reduce.block": "cluster_merge", "reduce.exchange": exchange, "reduce.merge": merge}
    kernel = tle_attn.load("hy3/decode_fp8").set({"schedule.block": "static_split", "schedule.splits": 8, "schedule.min_tokens": 64, **options}).kernel()
    problem = problem_for(kernel, LENGTHS, seed=seed)
    check(kernel, problem, launch(plan_for(kernel, problem, seed=seed), problem))


@ways
@pytest.mark.parametrize("recipe", ["hy3/decode_fp8_per_token", "variants/decode_bf16_selected", "variants/decode_bf16_contiguous", "variants/decode_bf16_d192_v128", "variants/decode_bf16_sink"])
def test_other_kernels(seed, recipe, exchange, merge):
    """CTAs without keys load nothing; values of another width; a chain in the denominator."""
    options = {"schedule.block": "static_split", "schedule.splits": 8, "schedule.min_tokens": 64, "mainloop.ctas_per_sm": 1, "ring.stages": 2}
    kernel = kernel_of(recipe, options | {"reduce.block": "cluster_merge", "reduce.exchange": exchange, "reduce.merge": merge}, query_tokens=2)
    problem = problem_for(kernel, LENGTHS, seed=seed)
    check(kernel, problem, launch(plan_for(kernel, problem, seed=seed), problem))


@ways
def test_all_ways_read_what_they_wrote(seed, exchange, merge):
    """Values that no rounding hides: a row of V that is infinite, and NaN behind it, reach their own rows and columns only."""
    kernel = kernel_of(RECIPE, {"reduce.exchange": exchange, "reduce.merge": merge})
    problem = problem_for(kernel, (4 * 64,), seed=seed, poison=False)
    problem.v_cache[problem.block_ids[0, 1].long(), 5, 0, 17] = torch.inf
    problem.v_cache[problem.block_ids[0, 2].long(), 6, 0, 40] = torch.nan
    out, _ = launch(plan_for(kernel, problem, seed=seed), problem)
    assert out[0, :, 17].isposinf().all() and out[0, :, 40].isnan().all()
    assert out[0, :, [i for i in range(128) if i not in (17, 40)]].isfinite().all()


@ways
@pytest.mark.parametrize("splits", [4, 8])
def test_thirty_schedules_give_the_same_bits(splits, seed, exchange, merge):
    kernel = kernel_of(RECIPE, {"schedule.splits": splits, "reduce.exchange": exchange, "reduce.merge": merge})
    problem = problem_for(kernel, (400, 0, 130), seed=seed)
    plan = plan_for(kernel, problem)
    found = set()
    for schedule in range(30):
        plan.executor.seed = schedule
        found.add(launch(plan, problem)[0].view(torch.int16).numpy().tobytes())
    assert len(found) == 1 and not any(plan.workspace[name].any() for name in plan.ZEROED if name in plan.workspace)


#: {what: (text, what it becomes, kinds of report)}
PUSH_LEADER = {
    "no barrier of the cluster": ("    cluster_barrier()\n", "", {"Race"}),
    "waits for one state less": ("live * STATE_BYTES", "(live - 1) * STATE_BYTES", {"BarrierMisuse", "Race", "Unwritten", "Deadlock"}),
    "waits for one state more": ("live * STATE_BYTES", "(live + 1) * STATE_BYTES", {"Deadlock"}),
    "no wait": ("            cluster_push_wait(landed[0], 0, live * STATE_BYTES)\n", "", {"Race", "Unwritten", "BarrierMisuse"}),
    "all push into one slot": ("cluster_push(states.slot(rank)", "cluster_push(states.slot(0)", {"Race", "Unwritten", "BarrierMisuse"}),
    "the second CTA merges": ("if rank == 0:", "if rank == 1:", {"Race", "Unwritten", "BarrierMisuse", "Deadlock"}),
    "sums are not pushed": ("        cluster_push(sums.slot(2 * rank + 1), 0, l, landed[0])\n", "", {"Deadlock"}),
}  # fmt: skip


PUSH_SHARDED = {
    "no barrier of the cluster": ("    cluster_barrier()\n", "", {"Race"}),
    "waits for one state less": ("live * STATE_BYTES", "(live - 1) * STATE_BYTES", {"BarrierMisuse", "Race", "Unwritten", "Deadlock"}),
    "no wait": ("        cluster_push_wait(landed[0], 0, live * STATE_BYTES)\n", "", {"Race", "Unwritten", "BarrierMisuse"}),
    "all deal into one slot": ("cluster_deal(states.slot(rank)", "cluster_deal(states.slot(0)", {"Race", "Unwritten", "BarrierMisuse"}),
    "sums are not dealt": ("            cluster_deal(sums.slot(2 * rank + 1), l, SHARE, landed[0])\n", "", {"Deadlock"}),
    "another CTA's share of the sums": ("remote_load_rows(sums.slot(2 * u), rank, acc, rank * SHARE)", "remote_load_rows(sums.slot(2 * u), rank, acc, 0)", {"Unwritten"}),
    "another CTA's sums": ("remote_load_rows(sums.slot(2 * u), rank,", "remote_load_rows(sums.slot(2 * u), 0,", {"Race", "Unwritten"}),
    "a helper deals": ("        if rank < live:\n", "        if rank < CLUSTER:\n", {"BarrierMisuse", "Race", "Deadlock", "Unwritten"}),
    "no helpers": ("    slot = helper_slot(slot, first_slot, splits)\n", "", {"Race", "Deadlock", "Unwritten"}),
}  # fmt: skip
_PULL = {
    "no barrier of the cluster": ("    cluster_barrier()\n", "", {"Race"}),
    "reads before the state is there": ("        cluster_wait(landed[owner], 0)\n", "", {"Race", "Unwritten"}),
    "waits for the first state only": ("cluster_wait(landed[owner], 0)", "cluster_wait(landed[0], 0)", {"Race", "Unwritten", "Deadlock"}),
    "waits at CTA scope": ("cluster_wait(landed[owner], 0)", "barrier_wait(landed[owner], 0)", {"BarrierMisuse"}),
    "an arrival before the state": (
        "            smem_store(sums.slot(1), l)\n            cluster_arrive(landed[rank], MERGERS)\n",
        "            cluster_arrive(landed[rank], MERGERS)\n            smem_store(sums.slot(1), l)\n", {"Race", "Unwritten"},
    ),
    "leaves while others read": ("                cluster_wait(landed[CLUSTER + merger], 0)\n", "                pass\n", {"Race"}),
    "says that it has read before it has": ("    for first in range(0, live, PULL_UNROLL):\n", "    cluster_arrive(landed[CLUSTER + rank], live)\n    for first in range(0, live, PULL_UNROLL):\n", {"Race", "BarrierMisuse"}),
    "does not say that it has read": ("    cluster_arrive(landed[CLUSTER + rank], live)\n", "", {"Deadlock", "Race"}),
}  # fmt: skip
PULL_LEADER = _PULL | {"says it to one CTA too few": ("cluster_arrive(landed[CLUSTER + rank], live)", "cluster_arrive(landed[CLUSTER + rank], live - 1)", {"Deadlock", "Race"})}
PULL_SHARDED = _PULL | {
    "says it to CTAs without a state": ("cluster_arrive(landed[CLUSTER + rank], live)", "cluster_arrive(landed[CLUSTER + rank], CLUSTER)", {"Race"}),
    "tells the first CTA only": ("cluster_arrive(landed[rank], MERGERS)", "cluster_arrive(landed[rank], 1)", {"Deadlock", "Race"}),
    "waits for the first reader only": ("cluster_wait(landed[CLUSTER + merger], 0)", "cluster_wait(landed[CLUSTER], 0)", {"Race"}),
    "no helpers": ("    slot = helper_slot(slot, first_slot, splits)\n", "", {"Race", "Deadlock", "Unwritten"}),
}  # fmt: skip
MUTANTS = {
    (exchange, merge, name): mutant
    for (exchange, merge), mutants in zip(WAYS, (PUSH_LEADER, PUSH_SHARDED, PULL_LEADER, PULL_SHARDED), strict=True) for name, mutant in mutants.items()
}  # fmt: skip


@pytest.mark.parametrize("exchange,merge,name", MUTANTS)
def test_mutant_is_reported_in_every_schedule(exchange, merge, name, tmp_path, seed):
    old, new, kinds = MUTANTS[exchange, merge, name]
    kernel = kernel_of(RECIPE, {"reduce.exchange": exchange, "reduce.merge": merge})
    text = generate(kernel, "cpu").text
    assert text.count(old) == 1, "the kernel text has changed, so should the mutant"
    file = tmp_path / "mutant.py"
    file.write_text(text.replace(old, new))
    # a helper is there where one is needed
    problem = problem_for(kernel, ((3 if merge == "sharded" else 4) * 64 - 7,), seed=seed)
    plan = plan_for(kernel, problem)
    plan.executor = EmulatedExecutor(kernel, tle=False)
    plan.executor.module = import_generated(file)
    verdicts = set()
    for schedule in range(4):
        plan.executor.seed = schedule
        try:
            launch(plan, problem)
            verdicts.add("accepted")
        except EmulationError as error:
            verdicts.add(type(error).__name__)
    assert verdicts <= kinds


@pytest.mark.parametrize("exchange,merge", [("push", "sharded"), ("pull", "sharded")])
def test_what_is_compiled_fits(exchange, merge):
    """The widest state of the recipe's axes, with the compiler's scratch for its way out of the registers."""
    pytest.importorskip("triton")
    kernel = kernel_of(RECIPE, {"reduce.size": 8, "schedule.splits": 8, "reduce.exchange": exchange, "reduce.merge": merge}, query_tokens=3)
    compiled = compile_kernel(kernel, "decode")
    assert compiled.shared_bytes <= min(SHARED_BYTES_PER_CTA, kernel.resources.shared_bytes + 64)
    assert (compiled.cluster, compiled.facts.spill_stores) == (8, 0)


class TestRefused:
    @pytest.mark.parametrize("slots,words", [
        ({}, "cluster_merge needs a static split"), ({"schedule": StaticSplit(splits=6)}, "6 splits are no whole clusters"),
    ])  # fmt: skip
    def test_schedules(self, slots, words):
        with pytest.raises(SpecError, match=words):
            Kernel(name="test", problem=Problem(), mainloop=DecodeMainloop(reduce=ClusterMerge(size=4), **slots))

    @pytest.mark.parametrize("options,words", [({"exchange": "pul"}, "exchange cannot be \"pul\""), ({"merge": "all"}, "merge cannot be \"all\"")])
    def test_ways(self, options, words):
        with pytest.raises(SpecError, match=words):
            ClusterMerge(**options)

    def test_sizes(self):
        with pytest.raises(SpecError, match="size cannot be 3"):
            ClusterMerge(size=3)

    @pytest.mark.parametrize("target", ["tle", "tle-emulated"])
    def test_targets(self, target):
        with pytest.raises(TargetUnavailable, match="a barrier of all warps of the cluster"):
            tle_attn.plan(RECIPE, batch=1, query_heads=8, kv_heads=1, target=target)
