"""What the case tests share: kernels of library recipes, random problems for them, runs in emulation and comparisons."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from attrs import evolve

import tle_attn
from tle_attn.runtime import Plan
from tle_attn.runtime.executors import EmulatedExecutor
from tle_attn.spec import DType, Kernel
from tle_attn.testing import DecodeProblem, PrefillProblem, compare, compare_lse
from tle_attn.verify import LSE_TOLERANCE, arguments_of, oracle_options, row_error, tolerance
from tle_attn.verify import prefill_problem_for as prefill_problem_for
from tle_attn.verify import problem_for as problem_for

DYNAMIC, STATIC = "hy3/decode_bf16", "hy3/decode_bf16_static"
FP8, FP8_PER_TOKEN = "hy3/decode_fp8", "hy3/decode_fp8_per_token"
KV_PER_TOKEN = "variants/decode_fp8_kv_per_token"
WINDOW, SOFT_CAP, D64 = "variants/decode_bf16_window", "variants/decode_bf16_soft_cap", "variants/decode_bf16_d64"
#: both element types, both quantisations, both schedules
FAMILY = (DYNAMIC, STATIC, FP8, FP8_PER_TOKEN)
#: a sequence that is not cut, whatever its length
UNSPLIT = {"schedule.block": "static_split", "schedule.splits": 1}
#: a sequence that is cut into parts of at least one tile
PARTS = {"schedule.block": "static_split", "schedule.splits": 4, "schedule.min_tokens": 64}

#: prefill recipes by what their kernels take
_PREFILL = {name: tle_attn.load(name).kernel() for name in tle_attn.list_recipes() if name.startswith("hy3/prefill")}
MASKED_PREFILL = [name for name, kernel in _PREFILL.items() if "block_mask" in kernel.arguments]
PREFILL = [name for name in _PREFILL if name not in MASKED_PREFILL]
PAGED_PREFILL = [name for name in PREFILL if "block_ids" in _PREFILL[name].arguments]
FP8_PREFILL = [name for name in PAGED_PREFILL if _PREFILL[name].problem.dtype is DType.FP8]

Problem = DecodeProblem | PrefillProblem
Result = tuple[torch.Tensor, torch.Tensor | None]


def kernel_of(recipe: str, options: dict[str, Any] | None = None, **problem: Any) -> Kernel:
    """A kernel that writes the log-sum-exp too, to base e if `options` do not say otherwise: so tests share few kernels, and all check it."""
    return tle_attn.load(recipe).set({"epilogue.lse": "e", **(options or {})}).kernel(**problem)


@cache
def executor_for(kernel: Kernel, target: str) -> EmulatedExecutor:
    """A kernel's module, generated once for all tests."""
    return EmulatedExecutor(kernel, tle=target == "tle-emulated")


def plan_for(kernel: Kernel, problem: Problem, target: str = "cpu", seed: int = 0) -> Plan:
    executor = executor_for(kernel, target)
    executor.seed = seed
    return tle_attn.plan(kernel, **problem.geometry, target=target, executor=executor)


def launch(plan: Plan, problem: Problem, **options: Any) -> Result:
    """(out, lse) of a run into outputs full of NaN."""
    out = options.pop("out", None)
    out = problem.new_output() if out is None else out
    if plan.kernel.mainloop.epilogue.lse != "none":
        options.setdefault("lse", torch.full(out.shape[:2], torch.nan))
    return plan.run(out=out, **{**problem.inputs, **arguments_of(plan.kernel, problem), **options})


def run(kernel: Kernel, problem: Problem, target: str = "cpu", seed: int = 0, **options: Any) -> Result:
    return launch(plan_for(kernel, problem, target, seed), problem, **options)


def check(kernel: Kernel, problem: Problem, result: Result) -> None:
    """AssertionError unless (out, lse) is the oracle's."""
    out, lse = result
    base = plan_base(kernel)
    meant = oracle_options(kernel, arguments_of(kernel, problem))
    expected, expected_lse = problem.reference(**{**meant, "p_quant": None, "lse_base": base})
    compare(out, expected, rms=tolerance(kernel)[0], row_error=row_error(kernel, problem, meant), name_row=problem.name_row)
    if base:
        compare_lse(lse, expected_lse, atol=LSE_TOLERANCE[kernel.problem.dtype], name_row=problem.name_row)


def plan_base(kernel: Kernel) -> str | None:
    """Base of the kernel's log-sum-exp."""
    return None if kernel.mainloop.epilogue.lse == "none" else kernel.mainloop.epilogue.lse


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def unit_scales(problem: Any) -> Any:
    """The same problem with every scale 1."""
    if not problem.is_fp8:
        return problem
    for scale in (problem.k_scale, problem.v_scale):
        # float32 numbers in the cache's own pages, or a tensor of their own
        (scale.view(torch.float32) if scale.dtype == torch.float8_e4m3fn else scale).fill_(1.0)
    return evolve(problem, q_scale=torch.ones_like(problem.q_scale))


def dominant_key(problem: Problem, seed: int) -> DecodeProblem:
    """V = 1, and one key in the first tile with logit 7 + h for query head h among others of standard deviation 1, with softmax_scale 1.

    `problem`: one sequence, 8 query heads over one, one query token, not poisoned.
    """
    problem = unit_scales(problem)
    q, k = torch.zeros(problem.q.shape), torch.zeros(problem.k_cache.shape)
    q[:, :, 0] = 1.0
    q[:, :, 1] = torch.linspace(1.0, 2.0, 8)
    k[..., 0] = torch.randn(k.shape[:3], generator=torch.Generator().manual_seed(seed))
    k[problem.block_ids[0, 0].long(), 3, 0, :2] = torch.tensor([0.0, 7.0])
    dtype = problem.q.dtype
    return evolve(problem, q=q.to(dtype), k_cache=k.to(dtype), v_cache=torch.ones(problem.v_cache.shape).to(dtype))
