"""Timing on the GPU: one call captured in a CUDA graph, replays queued behind a spin kernel, the median of many.

The planner of a task map runs outside of what is timed: one plan serves all layers of a step.  `benchmarks/` measures more
(cold caches, a read floor from the same run, the planner, ratios to recorded baselines).
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from ..errors import TargetUnavailable
from ..verify import oracle_options, problem_for, scales_of
from .floor import Workload, work_of
from .table import Table

if TYPE_CHECKING:
    from ..spec import Kernel

WARMUP, SAMPLES = 5, 50
#: cycles that the GPU spins, so that the replays are queued before the first one starts (host launch latency is not measured)
SPIN_CYCLES = 20_000_000


def require_gpu() -> None:
    """Raise TargetUnavailable in one line where no Hopper GPU is."""
    from ..build import has_hopper

    if not has_hopper():
        raise TargetUnavailable("bench needs an NVIDIA Hopper GPU (compute capability 9.0), and there is none here; every other command works without one")


def median_us(launch: Any) -> float:
    """Median time of one call of `launch`, which must be capturable."""
    import torch

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for _ in range(WARMUP):
        graph.replay()
    starts, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(SAMPLES)] for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(SPIN_CYCLES)
    for start, end in zip(starts, ends, strict=True):
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(1e3 * start.elapsed_time(end) for start, end in zip(starts, ends, strict=True))


def time_kernel(kernel: Kernel, workload: Workload) -> float:
    """Microseconds of a decode kernel on a workload, inputs warm in L2."""
    from ..runtime import plan

    case = problem_for(kernel, workload.kv_lens, workload.kv_heads, device="cuda")
    made = plan(kernel, batch=len(workload.kv_lens), query_heads=workload.kv_heads * kernel.problem.group, kv_heads=workload.kv_heads)
    planned = kernel.mainloop.schedule.PLANNED
    if planned:
        made.schedule(case.kv_lens)
    tensors = (case.q, case.k_cache, case.v_cache, case.block_ids, case.kv_lens)
    options = {"scheduled": planned, **scales_of(case)}
    out, _ = made.run(*tensors, **options)
    return median_us(lambda: made.run(*tensors, out=out, **options))


def bench_table(kernels: list[tuple[str, Kernel]], workloads: list[str]) -> Table:
    """Times of (name, kernel) pairs on named workloads, beside the floor of each."""
    import torch

    from ..build import versions
    from ..testing import WORKLOADS

    rows = []
    for name, kernel in kernels:
        for chosen in workloads or WORKLOADS:
            workload = Workload.named(chosen)
            measured = time_kernel(kernel, workload)
            floor = work_of(kernel, workload, oracle_options(kernel)).floor_us
            rows.append((name, chosen, f"{measured:.2f}", f"{floor:.2f}", f"{measured / floor:.2f}"))
    made_with = ", ".join(f"{what} {version}" for what, version in versions().items())
    columns = ("kernel", "workload", ">us", ">floor, us", ">us / floor")
    return Table(f"Times on {torch.cuda.get_device_name()}", columns, tuple(rows), f"Inputs warm in L2; {made_with}.")
