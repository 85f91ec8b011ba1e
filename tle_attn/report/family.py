"""Family: every recipe of a folder generated, compiled and verified at every point, in several processes, and one table of what came out."""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from ..checks import ProtocolReport, explore
from ..codegen import GENERATED
from ..errors import SpecError, TleAttnError, plain
from ..verify import EMULATED, Verification, oracle_options, tolerance, verify_kernel
from .facts import facts_of, facts_table
from .floor import AnyWorkload, work_of, workload_for
from .table import Table

if TYPE_CHECKING:
    from ..build import Facts
    from ..spec import Kernel

#: targets whose modules are written
WRITTEN = ("gluon", "tle", "cpu")

#: called with (steps done, steps in all, what was just done)
Tell = Callable[[int, int, str], None]


@frozen(kw_only=True)
class Row:
    """One kernel of the family.

    Attributes:
        recipe: name of its recipe.
        point: its point of the variant axes.
        modules: files of its generated modules.
        facts: {entry: facts} as compiled for sm_90a.
        verified: one verification per target that ran.
        protocol: the exploration of its barrier protocol.
        workload: what the floor and the time are for.
        floor_us: time floor on an H200.
        gpu_us: measured time, None without a Hopper GPU.
        seconds: how long making it took.
        failure: what went wrong outside of a verification, or None.
    """

    recipe: str
    point: dict[str, Any]
    modules: tuple[Path, ...] = ()
    facts: dict[str, Facts] = {}
    verified: tuple[Verification, ...] = ()
    protocol: ProtocolReport | None = None
    workload: AnyWorkload | None = None
    floor_us: float = float("nan")
    gpu_us: float | None = None
    seconds: float = 0.0
    failure: str | None = None

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def label(self) -> str:
        return f"{self.recipe} {point_label(self.point)}".strip()

    @property
    def failures(self) -> list[str]:
        protocol = self.protocol.failure if self.protocol else None
        found = (self.failure, *(v.failure for v in self.verified), f"{self.label}, barrier protocol: {protocol}" if protocol else None)
        return [text for text in found if text]


def point_label(point: dict[str, Any]) -> str:
    """"query_tokens=1 page=64": a point in words."""
    return " ".join(f"{key.rsplit('.', 1)[-1]}={plain(value)}" for key, value in point.items())


def build_family(family: str, out: Path, *, jobs: int = 2, seed: int = 0, workload: AnyWorkload | None = None, tell: Tell = lambda done, total, what: None) -> list[Row]:
    """Generate, compile and verify every recipe of the library under `family`/; with a Hopper GPU run and time them there too.

    Args:
        family: folder of the library, "hy3".
        out: folder for the modules; what an earlier run left for these recipes is replaced.
        jobs: processes.
        seed: of the random problems.
        workload: what floor and times of the kernels of its phase are for; others, and all without one, have their phase's usual workload.
        tell: told of progress.

    Returns:
        One row per recipe and point, in order.  What goes wrong is in the rows.
    """
    from ..recipe import list_recipes, load

    names = [n for n in list_recipes() if n.startswith(f"{family}/")]
    if not names:
        raise SpecError(f"the library has no recipes under {family}/", allowed=sorted({n.split("/")[0] for n in list_recipes()}))
    work = [(name, point) for name in names for point in load(name).points()]
    for name in names:
        _remove_generated(out / name.split("/", 1)[1])
    on_gpu = _has_hopper()
    total = len(work) * (2 if on_gpu else 1)
    rows: dict[int, Row] = {}
    # spawned, not forked: torch has threads by now
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker) as pool:
        futures = {pool.submit(build_one, name, point, out, seed, workload): i for i, (name, point) in enumerate(work)}
        try:
            for future in as_completed(futures):
                row = rows[futures[future]] = future.result()
                tell(len(rows), total, f"{row.label}: {'generated, compiled, verified' if row.ok else 'FAILED'} in {row.seconds:.1f} s")
        except BaseException:  # an interrupt, above all: nobody waits for a minute of work whose result is not wanted
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
    ordered = [rows[i] for i in range(len(work))]
    if on_gpu:
        for i, row in enumerate(ordered):
            ordered[i] = run_on_gpu(row, seed, workload)
            tell(len(work) + i + 1, total, f"{row.label}: {'run on the GPU' if ordered[i].ok else 'FAILED on the GPU'}")
    return ordered


def build_one(name: str, point: dict[str, Any], out: Path, seed: int, workload: AnyWorkload | None) -> Row:
    """One kernel, without a GPU: modules written, compiled, and verified in emulation."""
    from ..recipe import load

    start = time.perf_counter()
    row = Row(recipe=name, point=point)
    try:
        kernel = load(name).kernel(point)
        modules = write_modules(kernel, out / name.split("/", 1)[1] / (point_label(point).replace(" ", ",") or "default"))
        chosen = workload_for(kernel, workload)
        row = evolve(row, modules=modules, workload=chosen, floor_us=work_of(kernel, chosen, oracle_options(kernel)).floor_us)
        row = evolve(row, facts=facts_of(kernel))
        # one schedule: the emulation reports a missing order in any
        row = evolve(row, protocol=explore(kernel, seeds=1))
        for target in EMULATED:
            row = evolve(row, verified=(*row.verified, verify_kernel(kernel, target, seed=seed)))
    except TleAttnError as error:
        row = evolve(row, failure=f"{row.label}: {type(error).__name__}: {error}")
    except Exception:  # a fault in one kernel's text must not lose the report on the others
        row = evolve(row, failure=f"{row.label}: {traceback.format_exc()}")
    return evolve(row, seconds=time.perf_counter() - start)


def run_on_gpu(row: Row, seed: int, workload: AnyWorkload | None) -> Row:
    """The row with the kernel verified and timed on the GPU of this machine."""
    from ..recipe import load
    from .bench import time_kernel
    from .timing import Timer

    if row.failure:
        return row
    try:
        kernel = load(row.recipe).kernel(row.point)
        verified = (*row.verified, verify_kernel(kernel, "gluon", seed=seed))
        return evolve(row, verified=verified, gpu_us=time_kernel(kernel, workload_for(kernel, workload), Timer()))
    except TleAttnError as error:
        return evolve(row, failure=f"{row.label}: {type(error).__name__}: {error}")


def write_modules(kernel: Kernel, folder: Path) -> tuple[Path, ...]:
    """The generated modules of all targets as files."""
    from ..codegen import generate

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for target in WRITTEN:
        generated = generate(kernel, target)
        files.append(folder / f"{generated.module_name}.py")
        files[-1].write_text(generated.text)
    return tuple(files)


def family_table(rows: list[Row]) -> Table:
    """One line per kernel: errors by target, what the compiler used, floor and time."""
    targets = list(dict.fromkeys(v.target for row in rows for v in row.verified))
    timed = any(row.gpu_us is not None for row in rows)
    columns = ("kernel", *(f">error {t}" for t in targets), "protocol", ">registers", ">spills, B", ">shared, B", ">floor, us", *((">time, us",) if timed else ()), "")
    lines = []
    for row in rows:
        errors = {v.target: f"{v.error:.1e}" + ("" if v.ok else " WRONG") for v in row.verified}
        main = max(row.facts.values(), key=lambda f: f.shared_bytes) if row.facts else None
        spills = max((f.spill_stores + f.spill_loads for f in row.facts.values()), default=0)
        compiled = (main.registers, spills, f"{main.shared_bytes:,}") if main else ("-", "-", "-")
        protocol = "-" if row.protocol is None else "ok" if row.protocol.ok else "FAULT"
        times = (f"{row.gpu_us:.2f}" if row.gpu_us is not None else "-",) if timed else ()
        shown = (*(errors.get(t, "-") for t in targets), protocol, *compiled, f"{row.floor_us:.2f}", *times)
        lines.append((row.label, *shown, "ok" if row.ok else "FAILED"))
    workloads = "; ".join(dict.fromkeys(str(row.workload) for row in rows if row.workload)) or "none"
    note = (
        "error: largest relative RMS error against the float64 oracle on random ragged problems. Protocol: barriers explored in emulation. Registers, spills and shared memory: "
        f"the Gluon module's attention kernel, compiled for sm_90a. Floor{' and time' if timed else ''}: {workloads}; the floor at an H200's measured rates."
    )
    if not timed:
        note += " No Hopper GPU here: nothing was run or timed on one."
    failures = [text for row in rows for text in row.failures]
    return Table(f"{sum(r.ok for r in rows)} of {len(rows)} kernels are right", columns, tuple(lines), "\n".join([note, *failures]))


def write_report(rows: list[Row], out: Path) -> Path:
    """`report.md` in `out`: the table, what each module is, instruction facts and versions."""
    from ..build import versions
    from ..recipe import load

    facts = [(row.label, entry, f) for row in rows for entry, f in row.facts.items()]
    modules = [(row.label, ", ".join(f"[{t}]({m.relative_to(out)})" for t, m in zip(WRITTEN, row.modules, strict=False)), f"{row.seconds:.1f}") for row in rows]
    allowed = {tolerance(load(row.recipe).kernel(row.point)) for row in rows if not row.failure}
    made_with = ", ".join(f"{what} {version}" for what, version in versions().items())
    parts = [
        "# Reference kernels\n",
        f"Made with {made_with}. The TLE modules were run through an emulated `triton.language` and TLE, not on FlagTree.\n",
        family_table(rows).markdown(),
        *(f"Allowed error: {limit:.0e}, because {reason}.\n" for limit, reason in sorted(allowed)),
        facts_table(facts).markdown(),
        Table("Modules", ("kernel", "files", ">seconds to make"), tuple(modules)).markdown(),
    ]
    file = out / "report.md"
    file.write_text("\n".join(parts))
    return file


def _remove_generated(folder: Path) -> None:
    """The modules of an earlier run and the folders that are empty without them; nothing else, because the folder is the user's."""
    for file in folder.rglob("*.py"):
        with file.open() as text:
            if GENERATED in text.read(2000):
                file.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _start_worker() -> None:
    import torch

    # the parent ends its workers on an interrupt; one that ends itself may hold a lock of the pool
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # each process has a core of its own; torch's threads would only get in each other's way
    torch.set_num_threads(1)


def _has_hopper() -> bool:
    from ..build import has_hopper

    return has_hopper()
