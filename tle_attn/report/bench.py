"""Bench: times of kernels on the benchmark's workloads, beside the floor of each, with the method of `timing`.

The planner of a schedule runs outside of what is timed: one plan serves all layers of a step.  `benchmarks/` measures more
(cold caches, a read floor from the same run, the planner, ratios to recorded baselines).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import TargetUnavailable
from ..random_problems import states_problem_for
from ..verify import arguments_of, oracle_options, prefill_problem_for, problem_for
from .floor import AnyWorkload, MergeWorkload, require_phase, work_of
from .table import Table
from .timing import Timer, capture

if TYPE_CHECKING:
    from ..spec import Kernel


def require_gpu(command: str) -> None:
    """Raise TargetUnavailable in one line where no Hopper GPU is."""
    from ..build import has_hopper

    if not has_hopper():
        raise TargetUnavailable(f"{command} needs an NVIDIA Hopper GPU (compute capability 9.0), and there is none here")


def time_kernel(kernel: Kernel, workload: AnyWorkload, timer: Timer) -> float:
    """Microseconds of a kernel on a workload of its phase, inputs warm in L2."""
    from ..runtime import plan

    if isinstance(workload, MergeWorkload):
        case: Any = states_problem_for(kernel, workload.tokens, workload.heads, workload.states, device="cuda")
        made = plan(kernel)
        out, lse = made.run(**case.inputs)
        return timer.us(capture(lambda: made.run(**case.inputs, out=out, lse=lse)))
    if workload.q_lens is None:
        case = problem_for(kernel, workload.kv_lens, workload.kv_heads, device="cuda")
    else:
        case = prefill_problem_for(kernel, workload.pairs, workload.kv_heads, device="cuda")
    given = arguments_of(kernel, case)
    made = plan(kernel, **case.geometry)
    planned = kernel.mainloop.schedule.PLANNED
    if planned:
        made.schedule(**case.lengths, **given)
    out, _ = made.run(**case.inputs, **given, scheduled=planned)
    return timer.us(capture(lambda: made.run(**case.inputs, **given, out=out, scheduled=planned)))


def bench_table(kernels: list[tuple[str, Kernel]], workloads: list[AnyWorkload]) -> Table:
    """Times of (name, kernel) pairs on workloads of their phase, beside the floor of each."""
    import torch

    from ..build import versions

    timer = Timer()
    rows = []
    for name, kernel in kernels:
        for workload in workloads:
            require_phase(kernel, workload)
            measured = time_kernel(kernel, workload, timer)
            floor = work_of(kernel, workload, oracle_options(kernel)).floor_us
            rows.append((name, workload.name, f"{measured:.2f}", f"{floor:.2f}", f"{measured / floor:.2f}"))
    made_with = ", ".join(f"{what} {version}" for what, version in versions().items())
    columns = ("kernel", "workload", ">us", ">floor, us", ">us / floor")
    return Table(f"Times on {torch.cuda.get_device_name()}", columns, tuple(rows), f"Inputs warm in L2; {made_with}.")
