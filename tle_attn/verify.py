"""Verify: a kernel on random ragged problems, in emulation or on the GPU, against the float64 oracle.

    import tle_attn
    from tle_attn.verify import verify_kernel
    result = verify_kernel(tle_attn.load("hy3/decode_bf16").kernel(), "cpu")
    assert result.ok, result.failure
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from .errors import SpecError, TleAttnError
from .random_problems import prefill_problem_for, problem_for, problems, quant_type
from .spec import DType, Kernel

if TYPE_CHECKING:
    from torch import Tensor

    from .testing import DecodeProblem, PrefillProblem, StatesProblem

#: options of the oracle that several blocks may add to
STEPS = ("score_steps", "mask_steps")
#: targets that need no GPU
EMULATED = ("cpu", "tle-emulated")


def oracle_options(kernel: Kernel, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Options under which `tle_attn.oracle.attention` computes what this kernel should of a run that is `given` these tensors.

    Raises:
        SpecError: a block changes what is computed in a way that the oracle has not been told, or two blocks say different things.
    """
    options: dict[str, Any] = {}
    for where, block in kernel.blocks:
        try:
            said = block.oracle_options(kernel.problem, given or {})
        except SpecError as error:
            raise error.located(file=kernel.file, prefix=where)
        for name, value in said.items():
            if name in STEPS:
                options[name] = (*options.get(name, ()), *value)
            elif name in options:
                raise SpecError(f"a block before this one gives the oracle a {name} already", key=where, file=kernel.file, reason="the oracle has one of each")
            else:
                options[name] = value
    return {"causal": False} | options


def arguments_of(kernel: Kernel, case: DecodeProblem | PrefillProblem | StatesProblem, seed: int = 0) -> dict[str, Any]:
    """Random tensors for the arguments that blocks of a kernel want of a user, on the device of `case`; the same for the same seed."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Any] = {}
    for _, block in kernel.blocks:
        made |= block.example_arguments(case, generator)
    return {name: value.to(getattr(case, "q").device) for name, value in made.items()}


def tolerance(kernel: Kernel) -> tuple[float, str]:
    """Relative RMS error that is allowed, and why.

    Rounding to a type with m bits behind the leading one has a relative RMS error of 2**-m / sqrt(12) at the lower end of a binade and half of
    that at the upper: 1.1e-3 to 2.3e-3 for bf16, 1.8e-2 to 3.6e-2 for e4m3.  P is rounded once before the product with V (the oracle's is not),
    and a bf16 output is rounded once more.  The bounds are a little above the sum, and far below what a wrong key, scale or weight gives.
    """
    if kernel.mainloop.PHASE == "merge":
        return (2e-6, "sums and weights are fp32") if kernel.mainloop.epilogue.dtype is DType.F32 else (3e-3, "the output is rounded to bf16")
    if kernel.problem.dtype is DType.FP8:
        return 4e-2, "P is rounded to e4m3 before the product with V"
    if kernel.mainloop.epilogue.dtype is DType.F32:
        return 3e-3, "P is rounded to bf16 before the product with V"
    return 4e-3, "P and the output are rounded to bf16"


def row_error(kernel: Kernel, problem: DecodeProblem | PrefillProblem | StatesProblem, options: Mapping[str, Any]) -> Tensor | None:
    """Norm by which each row may be off besides (`tle_attn.testing.compare`): weights that no largest one of their row scales are rounded to multiples of a unit.

    `options`: the oracle's, as for the result that is compared.
    """
    from .testing import PagedProblem

    unit = max(block.weight_unit(kernel.problem) for _, block in kernel.blocks)
    return problem.weight_error(unit, **options) if unit and isinstance(problem, PagedProblem) else None


#: allowed absolute error of a log-sum-exp: sums in fp32, exp2 and log2 by the device's approximations; tensor cores add fp8 products with about 13 bits, 32 elements
#: of a head at a time, so that a logit that is the sum of four parts of up to 16 is off by up to 4 * 16 * 2**-13
LSE_TOLERANCE = {DType.BF16: 2e-3, DType.FP8: 8e-3}


@frozen(kw_only=True)
class Verification:
    """What came out of verifying one kernel on one target.

    Attributes:
        kernel: its name.
        target: "cpu", "tle-emulated", "gluon" or "tle".
        error: largest relative RMS error of a problem's rows (`tle_attn.testing.rms_of_rows`); infinity where a result is missing.
        tolerance: what is allowed.
        problems: how many were run.
        seconds: how long all of it took.
        failure: why it failed, or None.
    """

    kernel: str
    target: str
    error: float
    tolerance: float
    problems: int
    seconds: float
    failure: str | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None


def verify_kernel(kernel: Kernel, target: str = "cpu", *, seed: int = 0, device: Any = None) -> Verification:
    """Run `kernel` on random problems with poisoned gaps and outputs, and compare with the oracle.

    Args:
        kernel: the kernel.
        target: "cpu" and "tle-emulated" run in emulation, "gluon" on a Hopper GPU, "tle" on one with FlagTree.
        seed: of the problems and of the emulation's schedule.
        device: torch device; the target's own if not given.

    Returns:
        A Verification; a wrong result is its `failure`, not an exception.

    Raises:
        TargetUnavailable: the target cannot run here.
    """
    start = time.perf_counter()
    allowed, _ = tolerance(kernel)
    made = problems(kernel, seed=seed, emulated=target in EMULATED)
    worst, failure = 0.0, None
    for name, problem in made:
        error, failure = run_one(kernel, target, problem, allowed, seed, device)
        worst = max(worst, error)
        if failure:
            failure = f"{kernel.name} on {target}, {name}: {failure}"
            break
    seconds = time.perf_counter() - start
    return Verification(kernel=kernel.name, target=target, error=worst, tolerance=allowed, problems=len(made), seconds=seconds, failure=failure)


def run_one(
    kernel: Kernel, target: str, problem: DecodeProblem | PrefillProblem | StatesProblem, allowed: float, seed: int = 0, device: Any = None
) -> tuple[float, str | None]:
    """(relative RMS error of the rows, failure or None) of one problem."""
    import torch

    from .runtime import plan
    from .testing import compare, compare_lse, rms_of_rows

    epilogue = kernel.mainloop.epilogue
    with_lse = epilogue.lse != "none"
    arguments = arguments_of(kernel, problem, seed)
    options = oracle_options(kernel, arguments)
    expected, expected_lse = problem.reference(lse_base=epilogue.lse if with_lse else None, p_quant=None, **options)
    lost = int((~expected.isfinite().all(-1)).sum())
    if 2 * lost > expected[..., 0].numel():
        return math.inf, f"{lost} of {expected[..., 0].numel()} rows of the oracle's own result are not finite, so that little is compared: a score overflows, or divides by zero"
    made = plan(kernel, **problem.geometry, target=target, seed=seed, device=device)
    placed = problem.to(made.device)
    for name in set(made.workspace) - set(made.ZEROED):
        made.workspace[name].view(torch.uint8).fill_(0xFF)  # NaN, or -1
    out = placed.new_output(torch.float32 if epilogue.dtype is DType.F32 else torch.bfloat16)
    lse = torch.full(out.shape[:2], math.nan, device=made.device) if with_lse else None
    try:
        made.run(**placed.inputs, **arguments_of(kernel, placed, seed), out=out, lse=lse)
        besides = row_error(kernel, problem, options)
        error = rms_of_rows(out.cpu(), expected, besides)
        compare(out.cpu(), expected, rms=allowed, row_error=besides, name_row=problem.name_row)
        if lse is not None and expected_lse is not None:
            compare_lse(lse.cpu(), expected_lse, atol=LSE_TOLERANCE[kernel.problem.dtype], name_row=problem.name_row)
    except AssertionError as wrong:
        return error, str(wrong)
    except TleAttnError as refused:
        return math.inf, f"{type(refused).__name__}: {refused}"
    return error, None


__all__ = ["EMULATED", "Verification", "arguments_of", "oracle_options", "prefill_problem_for", "problem_for", "problems", "quant_type", "row_error", "tolerance", "verify_kernel"]
