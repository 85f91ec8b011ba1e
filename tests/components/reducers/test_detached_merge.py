"""Detached merge and early launches: whole kernels against the float64 oracle and, bit for bit, against the merge in the kernel; mutants that touch memory too early."""

import pytest
import torch

from tests.cases.helpers import check, kernel_of, launch, plan_for, problem_for
from tle_attn.checks.resources import launch_options
from tle_attn.codegen import entries_of, generate
from tle_attn.components.reducers.detached_merge import DetachedMerge
from tle_attn.emu import EmulationError
from tle_attn.errors import SpecError
from tle_attn.runtime.executors import EmulatedExecutor, import_generated

RECIPE = "variants/decode_bf16_detached"
DETACHED = {"reduce.block": "detached_merge"}
#: no key, one tile (unsplit), few parts, many
LENGTHS = (0, 1, 65, 130, 900)
#: ways to schedule: with the task map, started early or not, and with parts of each sequence
SCHEDULES = {
    "task map": {"schedule.min_tokens": 64}, "task map, early": {"schedule.min_tokens": 64, "schedule.pdl": True},
    "static": {"schedule.block": "static_split", "schedule.splits": 12, "schedule.min_tokens": 64},
}  # fmt: skip


def poisoned(plan):
    """A plan whose partial sums are NaN where the attention kernel does not write them."""
    for name in ("partial_o", "partial_ml"):
        plan.workspace[name].fill_(torch.nan)
    return plan


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("slice_above,tokens,group", [(0, 1, 8), (2, 2, 5), (2, 3, 8), (8, 1, 8)])
def test_against_the_oracle(seed, schedule, slice_above, tokens, group):
    """All parts merged by one CTA, and slices; split and unsplit sequences in one launch."""
    options = DETACHED | SCHEDULES[schedule] | {"reduce.slice_above": slice_above}
    kernel = kernel_of("hy3/decode_bf16", options, query_tokens=tokens, group=group)
    problem = problem_for(kernel, LENGTHS, kv_heads=2 if group == 5 else 1, seed=seed)
    plan = poisoned(plan_for(kernel, problem, seed=seed))
    check(kernel, problem, launch(plan, problem))
    if schedule != "static":
        plan.schedule(**problem.lengths)
        check(kernel, problem, launch(poisoned(plan), problem, scheduled=True))


@pytest.mark.parametrize("recipe,page", [("hy3/decode_fp8", 64), ("hy3/decode_fp8_per_token", 64), ("variants/decode_bf16_window", 16), ("variants/decode_fp8_sink", 64)])
@pytest.mark.parametrize("target", ["cpu", "tle-emulated"])
def test_other_kernels(seed, recipe, page, target):
    """Head elements in an order of their own, tiles that are not all read, a chain in the denominator."""
    kernel = kernel_of(recipe, DETACHED | {"schedule.min_tokens": 64, "schedule.pdl": True}, page=page)
    problem = problem_for(kernel, (0, 1, 130, 1500, 6000), seed=seed)
    check(kernel, problem, launch(poisoned(plan_for(kernel, problem, target=target, seed=seed)), problem))


def test_one_sequence_of_many_parts(seed):
    kernel = kernel_of(RECIPE, {"schedule.min_tokens": 64})
    problem = problem_for(kernel, (64 * 50 - 3, 0, 1), seed=seed)
    plan = poisoned(plan_for(kernel, problem, seed=seed))
    check(kernel, problem, launch(plan, problem))
    assert plan.records[:, 6].max() > kernel.mainloop.reduce.slice_above


@pytest.mark.parametrize("merge", [{"poll_above": 0}, {"poll_above": 8}, {"slice_above": 2}, {"slice_above": 128}])
def test_the_bits_of_the_merge_in_the_kernel(seed, merge):
    """The same functions over the same parts in the same order; a CTA that starts early reads and writes nothing else."""
    lengths, options = (1500, 0, 130, 70, 3), {"schedule.min_tokens": 64}
    inside = kernel_of("hy3/decode_bf16", options | {f"reduce.{option}": value for option, value in merge.items()})
    problem = problem_for(inside, lengths, seed=seed)
    out, lse = launch(plan_for(inside, problem), problem)
    for early in (False, True):
        # without waiting one CTA merges, however many parts there are
        above = inside.mainloop.reduce.slice_above if inside.mainloop.reduce.poll_above else 128
        apart = kernel_of("hy3/decode_bf16", options | DETACHED | {"reduce.slice_above": above, "schedule.pdl": early})
        for schedule in range(4):
            again, lse_again = launch(poisoned(plan_for(apart, problem, seed=schedule)), problem)
            assert torch.equal(out, again) and torch.equal(lse, lse_again)


def test_lengths_may_change_between_launches(seed):
    """Parts of an earlier launch are not read again."""
    kernel = kernel_of(RECIPE, {"schedule.min_tokens": 64})
    problem = problem_for(kernel, (900, 900, 900), seed=seed, poison=False)
    plan = plan_for(kernel, problem)
    for lengths in ((900, 900, 900), (5, 870, 0), (64, 64, 64), (1, 0, 640)):
        problem.kv_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        check(kernel, problem, launch(plan, problem))


def test_no_counters():
    plan = plan_for(kernel := kernel_of(RECIPE), problem_for(kernel, (5,)))
    assert set(plan.workspace) == {"partial_o", "partial_ml", "tasks"}


class TestLaunches:
    def test_kernels_and_their_launches(self):
        kernel = kernel_of(RECIPE)
        assert [e.name for e in entries_of(kernel)] == ["plan_tasks", "merge_partials", "decode"]
        early = {name: launch_options(kernel, name).get("launch_pdl", False) for name in ("plan_tasks", "decode", "merge_partials")}
        assert early == {"plan_tasks": False, "decode": True, "merge_partials": True}
        assert launch_options(kernel_of("hy3/decode_bf16", DETACHED), "decode").keys() == {"num_warps", "maxnreg"}

    def test_header_says_so(self):
        text = generate(kernel_of(RECIPE), "gluon").text
        assert "Kernel merge_partials, grid (tasks,), after decode, 4 warps" in text
        assert "merge_partials[grid](*arguments, num_warps=4, launch_pdl=True)" in text

    def test_machine_code(self):
        """Each waits for the kernel before it, and lets the one behind it start; the launch has the attribute."""
        pytest.importorskip("triton")
        from tle_attn.runtime.executors import compile_kernel

        kernel = kernel_of(RECIPE)
        for entry, early, opcodes in (("plan_tasks", False, {"PREEXIT"}), ("decode", True, {"PREEXIT", "ACQBULK"}), ("merge_partials", True, {"ACQBULK"})):
            compiled = compile_kernel(kernel, entry)
            assert bool(compiled.metadata.launch_pdl) == early
            # two words of predicates: the merge has a condition for each of 8 reads in flight
            assert {"PREEXIT", "ACQBULK"} & set(compiled.facts.opcodes) == opcodes and compiled.facts.spill_stores <= (8 if entry == "merge_partials" else 0)


_TASK = "    seq, head, first, count, kv_len, slot, first_slot, splits, flags = task(tasks)\n"
#: {what: (text, what it becomes, in which function)}; a NaN that shows is a verdict too
MUTANTS = {
    "the merge does not wait": ("    grid_wait()\n", "", "merge_partials"),
    "the merge reads its task before it waits": ("    grid_wait()\n    seq, head, slot, first_slot, splits = task(tasks)\n", "    seq, head, slot, first_slot, splits = task(tasks)\n    grid_wait()\n", "merge_partials"),
    "the attention kernel does not wait": ("    grid_wait()\n", "", "decode"),
    "it reads its task before it waits": ("    grid_wait()\n" + _TASK, _TASK + "    grid_wait()\n", "decode"),
    "maxima are not written": ("        store(ml + row, m, mask=row < ROWS)\n", "", "finish"),
    "a part is left out": ("where(r < ROWS, splits - s, 0)", "where(r < ROWS, splits - s - 1, 0)", "merge_rows"),
    "a slice is left out": ("range(slot - first_slot, ROWS", "range(slot - first_slot + 1, ROWS", "merge_partials"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_reported_in_every_schedule(name, tmp_path, seed):
    old, new, function = MUTANTS[name]
    kernel = kernel_of(RECIPE, {"schedule.min_tokens": 64, "reduce.slice_above": 4})
    text = generate(kernel, "cpu").text
    start = text.index(f"def {function}(")
    end = text.find("@jit\n", start) if "@jit\n" in text[start:] else len(text)
    body = text[start:end]
    old = _as_generated(old, body)
    assert body.count(old) == 1, "the kernel text has changed, so should the mutant"
    file = tmp_path / "mutant.py"
    file.write_text(text[:start] + body.replace(old, _as_generated(new, body)) + text[end:])
    problem = problem_for(kernel, (130, 64 * 9, 64 * 2, 64 * 3), seed=seed)
    plan = plan_for(kernel, problem)
    plan.executor = EmulatedExecutor(kernel, tle=False)
    plan.executor.module = import_generated(file)
    verdicts = set()
    for schedule in range(4):
        plan.executor.seed = schedule
        try:
            check(kernel, problem, launch(poisoned(plan), problem))
            verdicts.add("accepted")
        except EmulationError as error:
            verdicts.add(type(error).__name__)
        except AssertionError:
            verdicts.add("wrong")
    assert verdicts <= ({"Race"} if "wait" in name else {"wrong"})


def _as_generated(text: str, body: str) -> str:
    """The task as the function takes it apart."""
    line = next((line for line in body.splitlines(keepends=True) if "= task(" in line), "")
    return "".join(line if "= task(" in t else t for t in text.splitlines(keepends=True))


class TestRefused:
    def test_numbers(self):
        with pytest.raises(SpecError, match="slice_above"):
            DetachedMerge(slice_above=-1)

    def test_a_static_split_has_nothing_to_start_beside(self):
        with pytest.raises(SpecError, match="pdl"):
            kernel_of("hy3/decode_bf16_static", {"schedule.pdl": True})
