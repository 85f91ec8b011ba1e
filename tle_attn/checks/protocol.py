"""The barrier protocol of a kernel, explored: the generated module runs in the emulation, for the tile counts that matter and in several schedules.

There is no second description of the protocol that could say something else than the kernel: what is explored, without arithmetic, is the text that
is shipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from ..errors import ProtocolError

if TYPE_CHECKING:
    from ..spec import Kernel

TILE = 64


@frozen(kw_only=True)
class ProtocolReport:
    """What was explored, and the first fault.

    Attributes:
        kernel: its name.
        tiles: key tiles of a task around which the ring's edges lie: 0, 1, S - 1, S, S + 1 and 3 S + 1 for S stages.
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
        tiles = ", ".join(map(str, self.tiles))
        what = f"{self.ctas:,} CTAs with tasks around {tiles} key tiles, {self.schedules} schedules of {'; '.join(self.batches)}"
        return f"{what}: {self.copies:,} copies, {self.waits:,} waits: " + ("no fault" if self.ok else f"FAULT\n{self.failure}")


@frozen
class Batch:
    """Sequences of these key tiles on a device of `sms` multiprocessors."""

    name: str
    tiles: tuple[int, ...]
    sms: int = 4


def explore(kernel: Kernel, *, seeds: int = 3) -> ProtocolReport:
    """Run the kernel's cpu module over ragged batches and `seeds` schedules; a fault is in the report.

    Raises:
        LinkError, LintError: the kernel cannot be generated.
    """
    tiles = ring_edges(kernel)
    batches = batches_of(kernel)
    stats: list[Any] = []
    failure = None
    for batch in batches:
        failure = _run(kernel, batch, seeds, stats)
        if failure:
            break
    sums = {what: sum(getattr(s, what) for s in stats) for what in ("ctas", "waits", "copies", "polls")}
    return ProtocolReport(kernel=kernel.name, tiles=tiles, batches=tuple(b.name for b in batches), schedules=seeds, failure=failure, file=kernel.file, **sums)


def check_protocol(kernel: Kernel, *, seeds: int = 3) -> None:
    """Raise ProtocolError, with the emulation's report, if a schedule of `explore` shows a fault."""
    report = explore(kernel, seeds=seeds)
    if not report.ok:
        raise ProtocolError(f"the barrier protocol of {kernel.name} is wrong", reason=report.failure, file=kernel.file)


def ring_edges(kernel: Kernel) -> tuple[int, ...]:
    """Tile counts at which a ring of S stages starts, fills, wraps around and has wrapped several times."""
    stages = kernel.mainloop.ring.stages
    return tuple(sorted({0, 1, stages - 1, stages, stages + 1, 3 * stages + 1}))


def batches_of(kernel: Kernel) -> list[Batch]:
    """Batches whose tasks have the ring's edges as lengths, and batches whose sequences are split into few and into many parts."""
    mainloop = kernel.mainloop
    edges, least = ring_edges(kernel), mainloop.schedule.min_tokens // TILE
    ctas = mainloop.ctas_per_sm
    many = max(mainloop.reduce.poll_above + 1, 3)
    return [
        # long sequences for every slot make the share of a slot so large that none is cut
        Batch("sequences that are not split", (*edges, *[edges[-1]] * (4 * ctas))),
        Batch("sequences that are split into few parts", (0, 2 * least + 1, 1)),
        Batch(f"sequences that are split into {many} parts", (many * least, *edges[:2]), sms=-(-(many + 3) // ctas)),
    ]


def _run(kernel: Kernel, batch: Batch, seeds: int, stats: list[Any]) -> str | None:
    """The first fault of a batch in `seeds` schedules; launches share their workspace, as they do in use."""
    import torch

    from ..emu import EmulationError
    from ..runtime.decode import DecodePlan
    from ..runtime.executors import EmulatedExecutor
    from ..verify import problem_for, scales_of

    class Explorer(EmulatedExecutor):
        SMS, arithmetic = batch.sms, False

        def launch(self, *args: Any) -> None:
            stats.append(super().launch(*args))

    lengths = [max(n * TILE - 5 * (i % 3), 0) for i, n in enumerate(batch.tiles)]  # tiles that are full, and tiles that are not
    problem = problem_for(kernel, lengths)
    executor = Explorer(kernel, tle=False)
    plan = DecodePlan(kernel=kernel, batch=len(lengths), query_heads=kernel.problem.group, kv_heads=1, target="cpu", device=torch.device("cpu"), executor=executor)
    if kernel.mainloop.schedule.PLANNED:
        plan.schedule(problem.kv_lens)
    for seed in range(seeds):
        executor.seed = seed
        where = f"{batch.name}, of {', '.join(map(str, batch.tiles))} key tiles, schedule {seed}"
        try:
            plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens, scheduled=kernel.mainloop.schedule.PLANNED, **scales_of(problem))
        except EmulationError as error:
            return f"{where}: {type(error).__name__}: {error}"
        if plan.workspace["counters"].any():
            return f"{where}: counters are not zero after the launch, and the next one would not find its last arriver"
    return None
