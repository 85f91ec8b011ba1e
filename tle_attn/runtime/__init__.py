"""Runtime: plans and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InputError
from . import inputs
from .decode import DecodePlan, plan_decode

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..spec import Kernel

Plan = DecodePlan


def plan(
    what: Recipe | Kernel | str, *, batch: int, query_heads: int, kv_heads: int, device: Any = None, target: str = "gluon", seed: int = 0, **problem: Any
) -> Plan:
    """Fix everything before launches: compile the kernels, size and allocate the workspace.

    Args:
        what: a recipe, a recipe's name, or a Kernel composed in Python.
        batch: sequences; dead ones have length 0.
        query_heads, kv_heads: heads; their ratio becomes the recipe's `problem.group`.
        device: torch device; the GPU for target gluon and tle, the CPU for the emulations, if not given.
        target: "gluon" (stock Triton), "tle" (FlagTree), "cpu" (emulation), "tle-emulated".  Nothing falls back.
        seed: schedule of the emulation.
        problem: keys of the recipe's [problem]: query_tokens, page, head_dim.

    Raises:
        SpecError: the recipe cannot serve this geometry.
        TargetUnavailable: the target cannot run here.
    """
    from ..recipe import load
    from ..spec import Kernel

    if isinstance(what, str):
        what = load(what)
    if isinstance(what, Kernel):
        if problem:
            raise InputError(f"{', '.join(problem)}: a Kernel's problem is fixed; give a recipe to choose it")
        kernel = what
    else:
        inputs.check_counts(batch, query_heads, kv_heads)
        if query_heads % kv_heads:
            raise InputError(f"query_heads: {query_heads} is no multiple of kv_heads {kv_heads}")
        kernel = what.kernel(group=query_heads // kv_heads, **problem)
    device = device if device is not None else ("cpu" if target in ("cpu", "tle-emulated") else "cuda")
    return plan_decode(kernel, batch=batch, query_heads=query_heads, kv_heads=kv_heads, device=device, target=target, seed=seed)


__all__ = ["DecodePlan", "Plan", "plan"]
