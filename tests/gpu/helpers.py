"""What the GPU tests of decode kernels share."""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.kernels import Config
from tle_attn import verify
from tle_attn.runtime import Plan, inputs
from tle_attn.spec import DType
from tle_attn.testing import DecodeProblem, compare, compare_lse
from tle_attn.verify import LSE_TOLERANCE, oracle_options, tolerance

#: tighter than verification's, but for fp8, where tensor cores set it
LSE_ATOL = LSE_TOLERANCE | {DType.BF16: 5e-4}
#: Empty, partial and full tiles and pages; enough keys for a few tasks of one sequence.
RAGGED = (64, 0, 1, 129, 63, 5003, 65, 127, 0, 128, 3, 4096, 2, 300)


def problem_for(config: Config, kv_lens: Any = RAGGED, **options: Any) -> DecodeProblem:
    """A random problem of the config's geometry and types on the GPU."""
    return verify.problem_for(config.kernel(), kv_lens, config.kv_heads, device="cuda", **options)


def run(plan: Plan, problem: DecodeProblem, out: torch.Tensor | None = None, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(out, lse) of a launch into poisoned outputs; what blocks want besides is random."""
    out = problem.new_output(inputs.torch_dtype(plan.kernel.mainloop.epilogue.dtype)) if out is None else out
    lse = None
    if plan.kernel.mainloop.epilogue.lse != "none":
        lse = torch.full(out.shape[:2], torch.nan, device=out.device)
    given = problem.inputs | verify.arguments_of(plan.kernel, problem) | options
    return plan.run(out=out, lse=lse, **given)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its bit patterns, so that equal NaN are equal."""
    return tensor.view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


def check_replays(plan: Plan, problem: Any, replays: int = 1000) -> None:
    """AssertionError unless so many replays of a captured launch, planners included, give the bits of the first, each into a poisoned output."""
    out, _ = run(plan, problem)
    first = bits(out).clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.fill_(torch.nan)
        run(plan, problem, out)
    differing = torch.zeros((), dtype=torch.int64, device=out.device)
    for _ in range(replays):
        graph.replay()
        differing += (bits(out) != first).any()
    assert not differing, f"{int(differing)} of {replays} replays differ from the first launch"


def reference(plan: Plan, problem: DecodeProblem, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What the plan's kernel should compute, P not rounded."""
    base = plan.kernel.mainloop.epilogue.lse
    return problem.reference(**{"p_quant": None, "lse_base": None if base == "none" else base, **meaning(plan, problem), **options})


def meaning(plan: Plan, problem: DecodeProblem) -> dict[str, Any]:
    """Options of the oracle for the plan's kernel."""
    return oracle_options(plan.kernel, verify.arguments_of(plan.kernel, problem))


def compare_out(plan: Plan, problem: DecodeProblem, out: torch.Tensor, **options: Any) -> None:
    """AssertionError unless `out` is right; `options` of the oracle beyond what the recipe says."""
    besides = verify.row_error(plan.kernel, problem, {**meaning(plan, problem), **options})
    compare(out, reference(plan, problem, **options)[0], rms=tolerance(plan.kernel)[0], row_error=besides, name_row=problem.name_row)


def check(config: Config, problem: DecodeProblem) -> Plan:
    """Run and compare with the oracle; the plan, for more."""
    plan = config.plan(len(problem.kv_lens))
    out, lse = run(plan, problem)
    compare_out(plan, problem, out)
    if lse is not None:
        compare_lse(lse, reference(plan, problem)[1], atol=LSE_ATOL[plan.kernel.problem.dtype], name_row=problem.name_row)
    for name in plan.ZEROED:
        assert name not in plan.workspace or not plan.workspace[name].any(), f"the launch left its {name} changed: the next one would be wrong"
    return plan
