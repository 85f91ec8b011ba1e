"""Tuning with a made-up clock: every combination is tried, what the checks refuse is skipped with its reason, the fastest is kept."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import tle_attn
from tle_attn.build import BuildError
from tle_attn.errors import SpecError, TleAttnError
from tle_attn.report import Workload
from tle_attn.report.tune import tune
from tle_attn.spec import Kernel, registered
from tle_attn.spec.flat import tunable_options

WORKLOADS = [Workload.named("uniform_512"), Workload.named("skewed_mix")]
KEYS = ["loader.evict_first", "ring.stages", "schedule.min_tokens", "mainloop.ctas_per_sm"]


def clock(kernel: Kernel, workload: Workload) -> float:
    """Deep rings, one CTA and small tasks are fast, to a degree that depends on the workload."""
    m = kernel.mainloop
    weight = 1.0 if workload.name == "uniform_512" else 3.0
    return 100.0 + weight * (m.schedule.min_tokens / 256 + 5 * m.ctas_per_sm - m.ring.stages + (0 if m.loader.evict_first else 2))


def run(name: str = "hy3/decode_bf16", measure: Any = clock, **options: Any) -> Any:
    recipe = tle_attn.load(name)
    return tune(recipe, next(recipe.points()), WORKLOADS, measure=measure, **options)


def test_the_fastest_of_all_that_the_checks_allow() -> None:
    told: list[tuple[int, int, str]] = []
    tuning = run(tell=lambda *step: told.append(step))
    recipe = tle_attn.load("hy3/decode_bf16")
    choices = tunable_options(recipe.kernel())
    assert list(choices) == KEYS
    allowed, refused = [], 0
    for values in itertools.product(*choices.values()):
        try:
            allowed.append(recipe.set(dict(zip(choices, values, strict=True))).kernel())
        except SpecError:
            refused += 1
    assert refused > 0
    assert len(tuning.candidates) == len(allowed) + refused == told[-1][0] == told[-1][1]
    times = {w.name: [clock(k, w) for k in allowed] for w in WORKLOADS}
    product = [a * b for a, b in zip(*times.values(), strict=True)]
    best = allowed[product.index(min(product))]
    assert recipe.set(tuning.changed).kernel().mainloop == best.mainloop
    assert tuning.best.us == {name: all_times[product.index(min(product))] for name, all_times in times.items()}
    assert tuning.before.us == {w.name: clock(recipe.kernel(), w) for w in WORKLOADS}
    skipped = [c for c in tuning.candidates if c.skipped]
    assert len(skipped) == refused and all("bytes of shared memory" in c.skipped or "registers" in c.skipped for c in skipped)
    assert sum("skipped: mainloop" in what for _, _, what in told) == refused


def test_the_table_has_every_candidate() -> None:
    tuning = run(only=["ring.stages", "schedule.min_tokens"])
    table = tuning.table()
    assert len(table.rows) == len(tuning.candidates) and table.columns[:2] == ("ring.stages", "schedule.min_tokens")
    assert table.rows[0][:2] == ("3", "256") and [row[-1] for row in table.rows[:2]] == ["best", "as in the recipe"]
    assert "bytes of shared memory" in table.rows[-1][-1] and table.rows[-1][2] == "-"
    same = run(measure=lambda *_: 5.0, only=["ring.stages"]).table()
    assert same.rows[0][-1] == "best, as in the recipe"


def test_nothing_is_changed_for_equal_times() -> None:
    assert run(measure=lambda *_: 5.0).changed == {}


def test_what_is_set_stays_as_it_is() -> None:
    recipe = tle_attn.load("hy3/decode_bf16").set({"ring.stages": 2})
    tuning = tune(recipe, next(recipe.points()), WORKLOADS, measure=clock)
    assert "ring.stages" not in tuning.before.options and tuning.kernel.mainloop.ring.stages == 2


def test_a_candidate_that_fails_is_skipped_and_the_recipes_own_is_not() -> None:
    def failing(stages: int) -> Any:
        def measure(kernel: Kernel, workload: Workload) -> float:
            if kernel.mainloop.ring.stages == stages:
                raise BuildError("ptxas: no")
            return clock(kernel, workload)

        return measure

    tuning = run(measure=failing(2), only=["ring.stages"])
    assert [c.skipped for c in tuning.candidates if c.options["ring.stages"] == 2] == ["BuildError: ptxas: no"]
    with pytest.raises(TleAttnError, match="cannot be timed with its own options: BuildError: ptxas: no"):
        run(measure=failing(3), only=["ring.stages"])


def test_kernels_are_compiled_ahead_in_processes() -> None:
    seen: list[Any] = []
    tuning = run(only=["ring.stages"], jobs=7, compile_ahead=lambda kernels, jobs: seen.append((len(kernels), jobs)))
    assert seen == [(sum(not c.skipped for c in tuning.candidates), 7)]


def test_refused_requests() -> None:
    with pytest.raises(SpecError, match="ring.readers is not tunable"):
        run(only=["ring.readers"])
    recipe = tle_attn.load("hy3/decode_bf16").set({key: value[0] for key, value in tunable_options(tle_attn.load("hy3/decode_bf16").kernel()).items()})
    with pytest.raises(SpecError, match="nothing to tune"):
        tune(recipe, next(recipe.points()), WORKLOADS, measure=clock)
    with pytest.raises(SpecError, match="is for prefill"):
        recipe = tle_attn.load("hy3/decode_bf16")
        tune(recipe, next(recipe.points()), [Workload.named("prefill_512_4k")], measure=clock)


def test_declared_values_are_values() -> None:
    """What a block declares as tunable passes its own validators."""
    declared = 0
    for block in registered():
        for a in block.__attrs_attrs__:
            for value in a.metadata.get("tune", ()):
                declared += 1
                if a.validator is not None:
                    a.validator(None, a, value)
    assert declared > 8
