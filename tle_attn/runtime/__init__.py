"""Runtime: plans and runs."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import fields_dict

from ..errors import InputError
from . import inputs
from .base import Plan
from .cascade import CascadePlan, cascade
from .decode import DecodePlan, plan_decode
from .merge import MergePlan, plan_merge
from .prefill import PrefillPlan, plan_prefill

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..spec import Kernel

#: how a plan is made, by the phase of the kernel's mainloop
_MAKERS: dict[str, Callable[..., Plan]] = {"decode": plan_decode, "prefill": plan_prefill}


def plan(
    what: Recipe | Kernel | str, *, batch: int | None = None, query_heads: int | None = None, kv_heads: int | None = None, max_query_rows: int | None = None,
    device: Any = None, target: str = "gluon", seed: int = 0, executor: Any = None, tuned: bool | str = False, **problem: Any,
) -> Any:
    """Fix everything before launches: compile the kernels, size and allocate the workspace.

    Args:
        what: a recipe, a recipe's name, or a Kernel composed in Python.
        batch: sequences; dead ones have length 0.
        query_heads, kv_heads: heads; their ratio becomes the recipe's `problem.group`.  A merge kernel takes no geometry: its runs bring their own.
        max_query_rows: for a prefill kernel, the most rows of q in one run; decode kernels take none.
        device: torch device; the GPU for target gluon and tle, the CPU for the emulations, if not given.
        target: "gluon" (stock Triton), "tle" (FlagTree), "cpu" (emulation), "tle-emulated".  Nothing falls back.
        seed: schedule of the emulation.
        executor: that of another plan of this kernel and device, to share what it compiled; made if not given.
        tuned: for a recipe's name, as of `tle_attn.load`.
        problem: keys of the recipe's [problem]: query_tokens, page, head_dim.

    Returns:
        A DecodePlan, PrefillPlan or MergePlan, as the kernel's mainloop says.

    Raises:
        SpecError: the recipe cannot serve this geometry.
        InputError: the geometry is none, or none that the kernel is told.
        TargetUnavailable: the target cannot run here.
    """
    from ..recipe import load
    from ..spec import Kernel, Problem

    for name in [name for name in problem if name not in fields_dict(Problem)]:
        # what is near to a key of [problem], or to nothing, the recipe tells about
        own = list(inspect.signature(plan).parameters)
        near = difflib.get_close_matches(name, [*own, *fields_dict(Problem)], 1)
        if near and near[0] in own:
            raise InputError(f"{name}: plan has no such parameter; did you mean {near[0]!r}?")
    if isinstance(what, str):
        what = load(what, tuned=tuned)
    elif tuned:
        raise InputError("tuned: give it to tle_attn.load, or a recipe's name to plan")
    if isinstance(what, Kernel):
        if problem:
            raise InputError(f"{', '.join(problem)}: a Kernel's problem is fixed; give a recipe to choose it")
        kernel = what
    elif batch is query_heads is kv_heads is None:
        kernel = what.kernel(**problem)
    else:
        inputs.check_counts(batch, query_heads, kv_heads)
        if query_heads % kv_heads:
            raise InputError(f"query_heads: {query_heads} is no multiple of kv_heads {kv_heads}")
        kernel = what.kernel(group=query_heads // kv_heads, **problem)
    geometry = {"batch": batch, "query_heads": query_heads, "kv_heads": kv_heads}
    if kernel.mainloop.PHASE == "merge":
        for name, value in (*geometry.items(), ("max_query_rows", max_query_rows)):
            if value is not None:
                raise InputError(f"{name}: {kernel.name} merges states of any number of tokens and heads; its plan is not told")
        return plan_merge(kernel, device=device, target=target, seed=seed, executor=executor)
    phase: dict[str, Any] = {}
    if kernel.mainloop.PHASE == "prefill":
        phase["max_query_rows"] = max_query_rows
    elif max_query_rows is not None:
        raise InputError(f"max_query_rows: {kernel.name} is no prefill kernel; its rows are batch * query_tokens")
    return _MAKERS[kernel.mainloop.PHASE](kernel, **geometry, **phase, device=device, target=target, seed=seed, executor=executor)


__all__ = ["CascadePlan", "DecodePlan", "MergePlan", "Plan", "PrefillPlan", "cascade", "plan"]
