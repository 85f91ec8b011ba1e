"""Compile kernels into the cache ahead of a measurement, in parallel processes; needs no GPU."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import tle_attn
from tle_attn.runtime.executors import compile_kernel
from tle_attn.spec import Kernel

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> list[Result | Exception]:
    """`function` of every item, in `jobs` processes: its result or what it raised.  How long it took goes to the console."""
    start = time.monotonic()
    # spawned, not forked: a forked child would inherit the locks of PyTorch's and the CUDA driver's threads
    with ProcessPoolExecutor(min(jobs, len(items)), mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(function, item) for item in items]
        results = [future.exception() or future.result() for future in futures]
    print(f"compiled {len(items)} kernels in {time.monotonic() - start:.1f} s with {jobs} processes", flush=True)
    return results


def compile_all(kernels: dict[Any, Kernel], jobs: int) -> dict[Any, dict[str, Any] | Exception]:
    """{key: {entry: facts}}, or the exception of the first entry that does not compile, for every kernel."""
    work = [(key, kernel, entry.name) for key, kernel in kernels.items() for entry in tle_attn.generate(kernel, "gluon").entries]
    found: dict[Any, dict[str, Any] | Exception] = {key: {} for key in kernels}
    for (key, _, entry), result in zip(work, in_parallel(_compile, [(kernel, entry) for _, kernel, entry in work], jobs), strict=True):
        if isinstance(found[key], Exception):
            continue
        if isinstance(result, Exception):
            found[key] = result
        else:
            found[key][entry] = result
    return found


def _compile(job: tuple[Kernel, str]) -> dict[str, Any]:
    facts = compile_kernel(*job).facts
    spills = facts.spill_stores + facts.spill_loads
    return {"registers": facts.registers, "spills": spills, "shared_bytes": facts.shared_bytes, "instructions": facts.instructions}
