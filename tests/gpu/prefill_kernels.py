"""The prefill kernels that the GPU tests run, and what those tests share."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from attrs import evolve, frozen

import tle_attn
from tests.cases.helpers import FP8_PREFILL, MASKED_PREFILL, PAGED_PREFILL, PREFILL
from tests.compat.hpc_prefill_cases import grid
from tests.gpu.helpers import LSE_ATOL, compare_out, reference, run
from tle_attn import verify
from tle_attn.ops import prefill_plans
from tle_attn.runtime import Plan
from tle_attn.runtime.prefill import consumers_for
from tle_attn.spec import Kernel
from tle_attn.testing import PrefillProblem, compare_lse

#: (queries, keys): around query tiles, pages and key tiles; no query, no key, fewer keys than queries; long
RAGGED = ((64, 64), (0, 70), (1, 1), (129, 129), (300, 40), (3, 0), (127, 5003), (65, 127), (128, 128), (2, 300), (513, 2050), (1, 4096))


@frozen
class Config:
    """A recipe with options, for one geometry."""

    recipe: str
    options: tuple[tuple[str, Any], ...] = ()
    group: int = 8
    kv_heads: int = 1
    page: int | None = None

    def kernel(self) -> Kernel:
        page = {} if self.page is None else {"page": self.page}
        return tle_attn.load(self.recipe).set(dict(self.options)).kernel(group=self.group, **page)

    @property
    def label(self) -> str:
        return f"{self.recipe} page{self.page} {self.group * self.kv_heads}x{self.kv_heads}" + "".join(f" {key}={value}" for key, value in self.options)

    def problem(self, pairs: Any = RAGGED, **options: Any) -> PrefillProblem:
        """A random problem of the config's geometry and types on the GPU."""
        return verify.prefill_problem_for(self.kernel(), pairs, self.kv_heads, device="cuda", **{"padding_rows": 5, **options})

    def plan(self, problem: PrefillProblem) -> Plan:
        return tle_attn.plan(self.kernel(), **problem.geometry, executor=executor_for(self.kernel()))


@cache
def executor_for(kernel: Kernel) -> Any:
    """A kernel's code, loaded once."""
    from tle_attn.runtime.executors import make_executor

    return make_executor(kernel, "gluon", torch.device("cuda", torch.cuda.current_device()))


def config(recipe: str, group: int = 8, kv_heads: int = 1, page: int | None = None, **options: Any) -> Config:
    """Options with __ for the dot: ring__stages=2."""
    return Config(recipe, tuple((key.replace("__", "."), value) for key, value in options.items()), group, kv_heads, page)


def check(config: Config, problem: PrefillProblem) -> Plan:
    """Run and compare with the oracle; the plan, for more."""
    plan = config.plan(problem)
    out, lse = run(plan, problem)
    compare_out(plan, problem, out)
    if lse is not None:
        compare_lse(lse, reference(plan, problem)[1], atol=LSE_ATOL[plan.kernel.problem.dtype], name_row=problem.name_row)
    assert not any(plan.workspace[name].any() for name in plan.ZEROED), "the launch left its queue changed: the next one would be wrong"
    return plan


def alone(problem: PrefillProblem, b: int) -> PrefillProblem:
    """Sequence b by itself, over the same cache."""
    start, end = problem.cu_seqlens_q[b : b + 2].tolist()
    one = {name: getattr(problem, name)[b : b + 1] for name in ("block_ids", "kv_lens", "q_scale", "block_mask") if getattr(problem, name) is not None}
    return evolve(problem, q=problem.q[start:end], cu_seqlens_q=torch.tensor([0, end - start], dtype=torch.int32, device=problem.q.device), **one)


MASK, DENSE, PAGED, FP8 = map(tuple, (MASKED_PREFILL, PREFILL, PAGED_PREFILL, FP8_PREFILL))
BF16 = next(name for name in PAGED if name not in FP8)

POINTS = tuple(config(name, 8, 2, page) for name in PAGED for page in (16, 32, 64, 128))
CONTIGUOUS = tuple(config(name, 8, 2) for name in (*(name for name in DENSE if name not in PAGED), "variants/prefill_fp8_contiguous"))
MASKED = tuple(config(name, 4, 2) for name in MASK)
GROUPS = tuple(config(name, group, 3) for name in (BF16, *FP8[:1]) for group in (1, 2, 3, 5, 7, 16))
HEAD_DIM_64 = tuple(config(f"variants/prefill_{dtype}_d64", kv_heads=2) for dtype in ("bf16", "fp8"))
HEAD_DIM_192, HEAD_DIM_256 = (
    tuple(config(f"variants/prefill_{dtype}_{name}", 5, 2, page) for dtype in ("bf16", "fp8") for page in (64, 16, 128)) for name in ("d192_v128", "d256")
)
HEAD_DIM_96 = tuple(config(f"variants/prefill_{dtype}_d96", 5, 2, page) for dtype in ("bf16", "fp8") for page in (64, 16))
KV_PER_TOKEN = tuple(config("variants/prefill_fp8_kv_per_token", 5, 2, page, **options) for page, options in ((64, {}), (16, {"epilogue__lse": "e"}), (128, {"mainloop__consumers": 1})))
SMALL = tuple(config(name, mainloop__consumers=1) for name in (*DENSE, *MASK))
STAGED = tuple(config(name, 5, 2, epilogue__block="store_tma") for name in (BF16, *FP8[:1], MASK[-1], "variants/prefill_bf16_d96", "variants/prefill_bf16_f32_out"))
LSE = tuple(config(name, epilogue__lse=base) for name, base in ((BF16, "e"), (FP8[0], "2"), (MASK[0], "e")))
MAIN = tuple(config(name) for name in (*DENSE, *MASK))
WINDOW, SOFT_CAP, F32_OUT, MQA, ALIBI, SINK, EXPRESSION, SIGMOID = (
    tuple(f"variants/prefill_{dtype}_{name}" for dtype in ("bf16", "fp8")) for name in ("window", "soft_cap", "f32_out", "mqa", "alibi", "sink", "expression", "sigmoid")
)  # fmt: skip
WINDOWS = tuple(config(name, 5, 2, page, **options) for name in WINDOW for page, options in ((64, {}), (16, {"mask[1]__window": 100}), (128, {"mask[1]__window": 1})))
SOFT_CAPS = tuple(config(name, 5, 2) for name in SOFT_CAP)
#: the other variants, with several key/value heads
VARIANTS = tuple(config(name, 5, 2) for name in (*F32_OUT, *ALIBI, *EXPRESSION, *SIGMOID)) + tuple(config(name, 32) for name in MQA)
VARIANTS += tuple(config(name, 5, 2, epilogue__lse="e") for name in SINK)
VARIANTS += tuple(config(name, 4, 2, mainloop__consumers=1) for name in (WINDOW[0], ALIBI[0], SINK[1], SIGMOID[1]))

ALL = tuple(dict.fromkeys((*POINTS, *CONTIGUOUS, *MASKED, *GROUPS, *HEAD_DIM_64, *HEAD_DIM_96, *HEAD_DIM_192, *HEAD_DIM_256, *KV_PER_TOKEN, *STAGED, *LSE, *SMALL, *MAIN, *WINDOWS, *SOFT_CAPS, *VARIANTS)))


H200_MULTIPROCESSORS = 132


def grid_kernels() -> dict[str, Kernel]:
    """Kernels of hpc-ops' grids by a name, so that they can be compiled ahead."""
    kernels = {}
    for case in grid():
        kind = "contiguous" if case.operator == "contiguous" else {None: "none", 1: "tensor", 0: "token_head"}[case.quant]
        consumers = consumers_for(case.batch * case.queries, case.batch, case.heads[0], H200_MULTIPROCESSORS)
        kernel = prefill_plans.kernel_for(kind, None if kind == "contiguous" else 64, case.heads[0] // case.heads[1], case.skip is not None, consumers)
        kernels[f"{kernel.name} of hpc-ops' grids, group {kernel.problem.group}{' masked' if case.skip is not None else ''}, {consumers} consumers"] = kernel
    return kernels
