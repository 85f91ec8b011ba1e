"""Tune: try the options that a kernel's blocks declare as tunable, time each combination, keep the fastest."""

from __future__ import annotations

import datetime
import itertools
import math
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from .. import __version__
from ..errors import SpecError, TleAttnError, plain
from ..recipe.tuned import Tuned
from ..spec.flat import spec_digest, tunable_options
from .explain import problem_keys
from .floor import AnyWorkload, require_phase
from .table import Table

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..spec import Kernel

#: called with (steps done, steps in all, what was just done)
Tell = Callable[[int, int, str], None]
#: called with (kernel, workload): microseconds
Measure = Callable[["Kernel", AnyWorkload], float]


@frozen
class Candidate:
    """One combination of tunable options.

    Attributes:
        options: {dotted key: value} of all of them.
        us: {workload: microseconds}, empty where it was skipped.
        skipped: why it was not timed, or None.
    """

    options: dict[str, Any]
    us: dict[str, float] = field(factory=dict)
    skipped: str | None = None


@frozen(kw_only=True)
class Tuning:
    """All candidates of one kernel: the recipe's own options first, then those that were timed from the fastest on, then those that were skipped.

    Attributes:
        kernel: the kernel before.
        candidates: see above.
    """

    kernel: Kernel
    candidates: tuple[Candidate, ...]

    @property
    def before(self) -> Candidate:
        return self.candidates[0]

    @property
    def best(self) -> Candidate:
        """The fastest; the recipe's own options where nothing is faster."""
        return min((c for c in self.candidates if not c.skipped), key=lambda c: (self.score(c), c is not self.before))

    def score(self, candidate: Candidate) -> float:
        """Geometric mean over the workloads of time by time before: below 1 is faster."""
        return math.exp(sum(math.log(us / self.before.us[name]) for name, us in candidate.us.items()) / len(candidate.us))

    @property
    def changed(self) -> dict[str, Any]:
        """Options of the best that are not the recipe's own."""
        return {key: value for key, value in self.best.options.items() if value != self.before.options[key]}

    def table(self) -> Table:
        """Every candidate, with its times or the reason why it was skipped."""
        keys, workloads = list(self.before.options), list(self.before.us)
        timed = sorted((c for c in self.candidates if not c.skipped), key=self.score)
        rows = []
        for c in (*timed, *(c for c in self.candidates if c.skipped)):
            cells = [f"{c.us[w]:.2f}" for w in workloads] if c.us else ["-"] * len(workloads)
            told = c.skipped or ", ".join(word for word, is_so in (("best", c is self.best), ("as in the recipe", c is self.before)) if is_so)
            rows.append((*(plain(c.options[k]) for k in keys), *cells, f"{self.score(c):.3f}" if c.us else "-", told))
        columns = (*keys, *(f">{w}, us" for w in workloads), ">of before", "")
        skipped = sum(c.skipped is not None for c in self.candidates)
        note = f"{len(timed)} combinations timed, {skipped} skipped. Of before: geometric mean over the workloads of the time by that of the recipe's own options."
        return Table(f"Tuning {self.kernel.name}", columns, tuple(rows), note)

    def result(self, gpu: str, versions: dict[str, str]) -> Tuned:
        """What a tuned file keeps."""
        rounded = [{name: round(us, 2) for name, us in c.us.items()} for c in (self.best, self.before)]
        point = {key: getattr(self.kernel.problem, key) for key in problem_keys(self.kernel)}
        return Tuned(
            spec=spec_digest(self.kernel), point=point, options=self.changed, us=rounded[0], us_before=rounded[1], gpu=gpu, date=datetime.date.today().isoformat(),
            versions={"tle_attn": __version__, **{k: v for k, v in versions.items() if k != "gpu"}},
        )  # fmt: skip


def tune(
    recipe: Recipe, point: dict[str, Any], workloads: Sequence[AnyWorkload], *, measure: Measure, only: Iterable[str] = (), jobs: int = 1,
    compile_ahead: Callable[[Sequence[Kernel], int], None] | None = None, tell: Tell = lambda done, total, what: None,
) -> Tuning:
    """Time every combination of the tunable options of a recipe's kernel.

    Args:
        recipe: the recipe; options that were set on it stay as they are.
        point: of its variant axes.
        workloads: what is timed, at least one, of the kernel's phase.
        measure: the clock.
        only: keys to vary; all tunable ones if none.
        jobs: processes that compile ahead.
        compile_ahead: compiles kernels in that many processes; None leaves compiling to `measure`.
        tell: told of progress.

    Raises:
        SpecError: nothing is tunable, a key of `only` is not, or a workload is of another phase.
    """
    kernel = recipe.kernel(point)
    for workload in workloads:
        require_phase(kernel, workload)
    choices = {key: values for key, values in tunable_options(kernel).items() if key not in recipe.settings}
    only = tuple(only)
    for key in only:
        if key not in choices:
            raise SpecError(f"{key} is not tunable in {kernel.name}", key=key, allowed=sorted(choices), reason="a block declares what may be tuned, and what is set stays as it is")
    choices = {key: values for key, values in choices.items() if not only or key in only}
    if not choices:
        raise SpecError(f"{kernel.name} has nothing to tune", reason="none of its blocks declares a tunable option that is not set")
    candidates, kernels = [], []
    for values in itertools.product(*choices.values()):
        options = dict(zip(choices, values, strict=True))
        try:
            kernels.append(recipe.set(options).kernel(point))
            candidates.append(Candidate(options))
        except SpecError as error:  # what the checks refuse is no candidate
            candidates.append(Candidate(options, skipped=f"{error.key}: {error.message}" if error.key else error.message))
    if compile_ahead:
        compile_ahead(kernels, jobs)
    waiting = iter(kernels)
    for i, candidate in enumerate(candidates):
        words = ", ".join(f"{key} = {plain(value)}" for key, value in candidate.options.items())
        if not candidate.skipped:
            candidates[i] = candidate = _timed(candidate, next(waiting), workloads, measure)
        told = f"skipped: {candidate.skipped}" if candidate.skipped else ", ".join(f"{name} {us:.2f} us" for name, us in candidate.us.items())
        tell(i + 1, len(candidates), f"{words}: {told}")
    if candidates[0].skipped:
        raise TleAttnError(f"{kernel.name} cannot be timed with its own options: {candidates[0].skipped}")
    return Tuning(kernel=kernel, candidates=tuple(candidates))


def _timed(candidate: Candidate, kernel: Kernel, workloads: Sequence[AnyWorkload], measure: Measure) -> Candidate:
    """The candidate with its times, or with why the compiler or the runtime refuses it."""
    try:
        return Candidate(candidate.options, {w.name: measure(kernel, w) for w in workloads})
    except TleAttnError as error:
        return Candidate(candidate.options, skipped=f"{type(error).__name__}: {str(error).splitlines()[0]}")


def compile_in_processes(kernels: Sequence[Kernel], jobs: int) -> None:
    """Compile into the cache; what does not compile says so when it is timed."""
    from ..codegen import entries_of

    # spawned, not forked: a forked child would inherit the locks of torch's threads and the driver's
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(_compile, kernel, entry.name) for kernel in kernels for entry in entries_of(kernel)]:
            future.exception()


def _compile(kernel: Kernel, entry: str) -> None:
    from ..runtime.executors import compile_kernel

    compile_kernel(kernel, entry)
