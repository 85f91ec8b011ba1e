"""The barrier protocol of a kernel, explored: the generated module runs in the emulation, for the tile counts that matter and in several schedules.

There is no second description of the protocol that could say something else than the kernel: what is explored, without arithmetic, is the text that
is shipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from ..errors import ProtocolError
from ..spec.tasks import PARTS_WORD
from .batches import batches_of, ring_edges

if TYPE_CHECKING:
    from ..spec import Kernel
    from .batches import Batch


@frozen(kw_only=True)
class ProtocolReport:
    """What was explored, and the first fault.

    Attributes:
        kernel: its name.
        tiles: key tiles of a piece of work around which the ring's edges lie: 0, 1, S - 1, S, S + 1 and 3 S + 1 for S stages.
        batches: what was launched, in words.
        schedules: how often each.
        ctas, waits, copies, polls: what the launches did, all together.
        failure: the emulation's report on the first fault with what led to it, or None.
        file: the kernel's recipe.
    """

    kernel: str
    tiles: tuple[int, ...]
    batches: tuple[str, ...]
    schedules: int
    ctas: int = 0
    waits: int = 0
    copies: int = 0
    polls: int = 0
    failure: str | None = None
    file: str | None = field(default=None, eq=False)

    @property
    def ok(self) -> bool:
        return self.failure is None

    def __str__(self) -> str:
        if not self.batches:
            return "no barriers"
        tiles = ", ".join(map(str, self.tiles))
        what = f"{self.ctas:,} CTAs with work around {tiles} key tiles, {self.schedules} schedules of {'; '.join(self.batches)}"
        return f"{what}: {self.copies:,} copies, {self.waits:,} waits: " + ("no fault" if self.ok else f"FAULT\n{self.failure}")


def explore(kernel: Kernel, *, seeds: int = 3) -> ProtocolReport:
    """Run the kernel's cpu module over ragged batches and `seeds` schedules; a fault is in the report.  A kernel without barriers has nothing to explore.

    Raises:
        LinkError, LintError: the kernel cannot be generated.
    """
    if not kernel.resources.barriers:
        return ProtocolReport(kernel=kernel.name, tiles=(), batches=(), schedules=0, file=kernel.file)
    tiles = ring_edges(kernel)
    batches = batches_of(kernel)
    stats: list[Any] = []
    shown: list[str] = []
    failure = None
    for batch in batches:
        failure = _run(kernel, batch, seeds, stats, shown)
        if failure:
            break
    sums = {what: sum(getattr(s, what) for s in stats) for what in ("ctas", "waits", "copies", "polls")}
    return ProtocolReport(kernel=kernel.name, tiles=tiles, batches=tuple(shown), schedules=seeds, failure=failure, file=kernel.file, **sums)


def check_protocol(kernel: Kernel, *, seeds: int = 3) -> None:
    """Raise ProtocolError, with the emulation's report, if a schedule of `explore` shows a fault."""
    report = explore(kernel, seeds=seeds)
    if not report.ok:
        raise ProtocolError(f"the barrier protocol of {kernel.name} is wrong", reason=report.failure, file=kernel.file)


def _run(kernel: Kernel, batch: Batch, seeds: int, stats: list[Any], shown: list[str]) -> str | None:
    """The first fault of a batch in `seeds` schedules; launches share their workspace, as they do in use."""
    from ..emu import EmulationError
    from ..runtime import plan
    from ..runtime.executors import EmulatedExecutor
    from ..verify import arguments_of

    class Explorer(EmulatedExecutor):
        SMS, arithmetic = batch.sms, False

        def launch(self, *args: Any) -> None:
            stats.append(super().launch(*args))

    problem = batch.problem(kernel)
    given = problem.inputs | arguments_of(kernel, problem)
    executor = Explorer(kernel, tle=False)
    made = plan(kernel, **problem.geometry, target="cpu", executor=executor)
    planned = kernel.mainloop.schedule.PLANNED
    if planned:
        made.schedule(**problem.lengths, **arguments_of(kernel, problem))
    # windows and lists make fewer tiles of a sequence, and so fewer parts, than its length says
    parts = int(made.records[:, PARTS_WORD].max()) if planned and kernel.mainloop.PHASE == "decode" else 0
    shown.append(batch.name + (f" ({parts} part{'s' * (parts > 1)} at most)" if parts else ""))
    for seed in range(seeds):
        executor.seed = seed
        where = f"{batch.name}, {batch.shown}, schedule {seed}"
        try:
            made.run(**given, scheduled=planned)
        except EmulationError as error:
            return f"{where}: {type(error).__name__}: {error}"
        changed = [name for name in made.ZEROED if name in made.workspace and made.workspace[name].any()]
        if changed:
            return f"{where}: {', '.join(changed)} not zero after the launch, and the next one would start from a wrong count"
    return None
