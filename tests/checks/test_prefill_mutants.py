"""Every synchronisation of a prefill kernel is needed: with any one of them taken out, the emulation reports a fault, in every schedule of some batch."""

import re
from pathlib import Path

import pytest

import tle_attn
from tle_attn.checks.batches import Batch
from tle_attn.codegen import MARK, generate
from tle_attn.emu import EmulationError
from tle_attn.runtime.executors import EmulatedExecutor, import_generated

RECIPES = ("hy3/prefill_bf16", "hy3/prefill_fp8", "hy3/prefill_fp8_per_token_block_mask", "variants/prefill_bf16_d192_v128", "variants/prefill_fp8_kv_per_token")
#: units of several key tiles, more than the rings hold, on few CTAs; units without a key, which pass through nothing but the unit records
BATCHES = (Batch("tiles", ((260, 700), (3, 3), (130, 130)), sms=2), Batch("nothing", ((1, 0),) * 12, sms=2))
SCHEDULES = 2
NAMES = "barrier_wait|barrier_arrive|release|acquire|wait_slot|wait_tile|named_wait|named_arrive|fence_async"
STATEMENT = re.compile(rf"^( +)(?:{NAMES})\(.*\)$", re.MULTILINE)
#: what the emulation cannot miss, and why it is there
SURVIVORS = {
    "barrier_wait(work_full[0], 0)": "the first record is published before the roles start, and their start orders it already",
    "fence_async()": "makes the barriers' first state visible to TMA, which the emulation does not model apart from the barriers",
    "acquire(v_empty, done + i)": "where V is transposed the role that waits is the one that frees; its four warps, for which it is needed, are one thread to the emulation",
    "named_wait(turn[0])": "takes the last arrival of the turns, so that none is left over when the kernel ends",
}


class Runner:
    """The batches of a kernel, with any text in place of its own."""

    def __init__(self, kernel, folder: Path):
        self.kernel, self.folder, self.count = kernel, folder, 0
        self.problems = [batch.problem(kernel) for batch in BATCHES]
        self.executor = EmulatedExecutor(kernel, tle=False)
        self.executor.SMS, self.executor.arithmetic = BATCHES[0].sms, False
        self.plans = [tle_attn.plan(kernel, **p.geometry, target="cpu", executor=self.executor) for p in self.problems]
        for plan, problem in zip(self.plans, self.problems, strict=True):
            plan.schedule(**problem.lengths)

    def verdicts(self, text: str) -> list[set[str]]:
        """Kinds of reports in `SCHEDULES` schedules of each batch; "queue" where it is not zero afterwards, or "accepted"."""
        file = self.folder / f"mutant{self.count}.py"
        self.count += 1
        file.write_text(text)
        self.executor.module = import_generated(file)
        return [{self.verdict(plan, problem, seed) for seed in range(SCHEDULES)} for plan, problem in zip(self.plans, self.problems, strict=True)]

    def verdict(self, plan, problem, seed: int) -> str:
        self.executor.seed = seed
        plan.reset()
        try:
            plan.run(**problem.inputs, scheduled=True)
        except EmulationError as error:
            return type(error).__name__
        return "queue" if plan.workspace["queue"].any() else "accepted"


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_synchronisation_can_be_left_out(recipe, tmp_path):
    kernel = tle_attn.load(recipe).kernel(group=2)
    text = generate(kernel, "cpu").text
    runner = Runner(kernel, tmp_path)
    assert runner.verdicts(text) == [{"accepted"}] * len(BATCHES)
    found = list(STATEMENT.finditer(text, text.index(MARK)))
    assert len(found) > 15, "the kernel's synchronisation is written in another way: so should the pattern"
    missed = []
    for m in found:
        verdicts = runner.verdicts(text[: m.start()] + m[1] + "pass" + text[m.end() :])
        if all("accepted" in kinds for kinds in verdicts) and m[0].strip() not in SURVIVORS:
            missed.append(f"line {text.count(chr(10), 0, m.start()) + 1}: {m[0].strip()}: {verdicts}")
    assert not missed, "\n".join(missed)
