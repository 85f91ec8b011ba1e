"""What the GPU tests of decode kernels share."""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.kernels import D64, SOFT_CAP, WINDOW, Config
from tle_attn.runtime import Plan
from tle_attn.testing import DecodeProblem, compare, compare_lse, make_decode_problem

#: Rounding P and the output to bf16 gives a relative RMS error near 2e-3.
RMS = 4e-3
LSE_ATOL = 5e-4
#: Empty, partial and full tiles and pages; enough keys for a few tasks of one sequence.
RAGGED = (64, 0, 1, 129, 63, 5003, 65, 127, 0, 128, 3, 4096, 2, 300)


def problem_for(config: Config, kv_lens: Any = RAGGED, **options: Any) -> DecodeProblem:
    """A random problem of the config's geometry on the GPU."""
    head_dim = 64 if config.recipe == D64 else 128
    return make_decode_problem(kv_lens, query_tokens=config.query_tokens, heads=config.heads, page=config.page, head_dim=head_dim, device="cuda", **options)


def reference_options(config: Config) -> dict[str, Any]:
    """What the recipe adds to plain attention, as the oracle calls it."""
    return {SOFT_CAP: {"soft_cap": 50.0}, WINDOW: {"window": 4096}}.get(config.recipe, {})


def run(plan: Plan, problem: DecodeProblem, out: torch.Tensor | None = None, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(out, lse) of a launch into poisoned outputs."""
    out = problem.new_output() if out is None else out
    lse = None
    if plan.kernel.mainloop.epilogue.lse != "none":
        lse = torch.full(out.shape[:2], torch.nan, device=out.device)
    return plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens, out=out, lse=lse, **options)


def check(config: Config, problem: DecodeProblem, **options: Any) -> Plan:
    """Run and compare with the oracle; the plan, for more."""
    plan = config.plan(len(problem.kv_lens))
    out, lse = run(plan, problem, **options)
    base = plan.kernel.mainloop.epilogue.lse
    want, want_lse = problem.reference(**reference_options(config), lse_base=None if base == "none" else base)
    compare(out, want, rms=RMS, name_row=problem.name_row)
    if lse is not None:
        compare_lse(lse, want_lse, atol=LSE_ATOL, name_row=problem.name_row)
    assert not plan.workspace["counters"].any(), "the launch left its counters changed: the next one would be wrong"
    return plan
