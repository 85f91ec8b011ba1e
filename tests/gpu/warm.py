"""Compile every kernel of the GPU tests into the cache, in parallel processes: `python -m tests.gpu.warm [--jobs N]`.  Needs no GPU."""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks.compiling import compile_all, in_parallel
from tests.compat import hpc_cases
from tests.gpu import ops, prefill_kernels
from tests.gpu.kernels import ALL, cascade_kernels
from tle_attn.errors import TleAttnError


def compile_op(kernel: str) -> None:
    ops.compiled(kernel)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.warm", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    jobs = parser.parse_args().jobs
    kernels, results = {}, {}
    for config in (*ALL, *prefill_kernels.ALL):
        try:
            kernels[config.label] = config.kernel()
        except TleAttnError as error:
            results[config.label] = error
    kernels |= hpc_cases.grid_kernels() | prefill_kernels.grid_kernels()
    kernels |= cascade_kernels()
    results |= compile_all(kernels, jobs)
    results |= zip(ops.BY_NAME, in_parallel(compile_op, list(ops.BY_NAME), jobs), strict=True)
    failed = {label: result for label, result in results.items() if isinstance(result, Exception)}
    for label, error in failed.items():
        print(f"FAILED {label}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
