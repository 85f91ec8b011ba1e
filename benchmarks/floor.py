"""The read floor: how long the GPU needs to read a problem's live pages once, with nothing else to do.

No decode kernel that reads each page once can be faster, so `us / floor_us` says what is left to gain.  It moves by a few percent from run
to run: compare times with the floor of the same run.  K scales per token (1.6 % of the bytes) are not read.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from benchmarks.watchdog import watch
from tle_attn.build import Descriptor, compile_module, descriptor
from tle_attn.codegen.prelude import prelude
from tle_attn.components.mainloops.decode_producers import spread
from tle_attn.report.timing import Timer, capture
from tle_attn.runtime import decode as runtime
from tle_attn.spec.tasks import EVICT_SHARES
from tle_attn.testing import DecodeProblem

#: Bytes of pages in flight per SM; all of these shapes measure within a few percent of each other, and the best counts.
BYTES_PER_SM = 192 << 10
CTAS_PER_SM = (1, 2, 3)


@frozen
class Floor:
    """Microseconds, the launch of a graph included, as for every kernel."""

    us: float
    us_cold: float


def stages(page_bytes: int, ctas_per_sm: int) -> int:
    """Pages (K and V) that each CTA keeps in flight."""
    return max(1, BYTES_PER_SM // ctas_per_sm // (2 * page_bytes))


@functools.cache
def compiled(dtype: str, page: int, head_dim: int, page_bytes: int, ctas_per_sm: int, hints: bool) -> Any:
    """The reading kernel for one page shape, a `tle_attn.build.CompiledKernel`; needs no GPU."""
    box = Descriptor(dtype, (1, 1, page, head_dim))
    signature = {"k_desc": box, "v_desc": box, "page_ids": "*i32", "units": "i32", "heads": "i32", "share": "i32"}
    reader = Path(__file__).with_name("read_pages.py").read_text()
    text = "\n\n\n".join((prelude("gluon", {"jit", "evict_first"}), inspect.getsource(spread), reader))
    constants = {"STAGES": stages(page_bytes, ctas_per_sm), "HINTS": hints}
    return compile_module(text, "read_pages", signature, num_warps=1, constants=constants)


def leaving(pages: int, page_bytes: int, l2_bytes: int) -> int:
    """Pages (K and V) of EVICT_SHARES that leave the L2 cache first, as task maps have it."""
    kept = int(runtime.L2_KEPT * l2_bytes) // (2 * page_bytes)
    return max(EVICT_SHARES - EVICT_SHARES * kept // pages, 0)


def live_pages(problem: DecodeProblem) -> torch.Tensor:
    """Page ids of the pages that hold keys, sequence after sequence."""
    page = problem.k_cache.shape[1]
    column = torch.arange(problem.block_ids.shape[1], device=problem.block_ids.device)
    return problem.block_ids[column[None, :] * page < problem.kv_lens[:, None]]


def measure(problem: DecodeProblem, timer: Timer, label: str) -> Floor:
    """The best of a few ring shapes, with decode's cache hints and without, warm and cold each for itself."""
    _, page, heads, dim = problem.k_cache.shape
    page_bytes = page * dim * problem.k_cache.element_size()
    dtype = "fp8" if problem.is_fp8 else "bf16"
    ids = live_pages(problem)
    device = torch.cuda.get_device_properties(ids.device)
    sms, share = device.multi_processor_count, leaving(len(ids) * heads, page_bytes, device.L2_cache_size)
    box = (1, 1, page, dim)
    views = [cache.permute(0, 2, 1, 3) for cache in (problem.k_cache, problem.v_cache)]
    descriptors = [descriptor(view, view.shape, view.stride(), box, dtype) for view in views]
    args = [*descriptors, ids, len(ids) * heads, heads, share]
    warm, cold = [], []
    for ctas_per_sm, hints in itertools.product(CTAS_PER_SM, (False, True) if share else (False,)):
        kernel = compiled(dtype, page, dim, page_bytes, ctas_per_sm, hints)
        kernel.load()
        with watch(f"{label}: read floor, {ctas_per_sm} CTAs per SM"):
            graph = capture(lambda: kernel.launch((sms * ctas_per_sm,), args))
            warm.append(timer.us(graph))
            cold.append(timer.us_cold(graph))
    return Floor(min(warm), min(cold))
