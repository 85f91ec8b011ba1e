"""Verify: a kernel on random ragged problems, in emulation or on the GPU, against the float64 oracle.

    import tle_attn
    from tle_attn.verify import verify_kernel
    result = verify_kernel(tle_attn.load("hy3/decode_bf16").kernel(), "cpu")
    assert result.ok, result.failure
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from attrs import frozen

from .errors import SpecError, TleAttnError
from .random_problems import prefill_problem_for, problem_for, problems, quant_type
from .spec import DType, Kernel

if TYPE_CHECKING:
    from .testing import DecodeProblem, PrefillProblem, StatesProblem

#: targets that need no GPU
EMULATED = ("cpu", "tle-emulated")


def oracle_options(kernel: Kernel) -> dict[str, Any]:
    """Options under which `tle_attn.oracle.attention` computes what this kernel should.

    Raises:
        SpecError: a block changes what is computed in a way that the oracle has not been told.
    """
    options: dict[str, Any] = {"causal": False}
    for where, block in kernel.blocks:
        try:
            options |= block.oracle_options()
        except SpecError as error:
            raise error.located(file=kernel.file, prefix=where)
    return options


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


#: allowed absolute error of a log-sum-exp: sums in fp32, exp2 and log2 by the device's approximations
LSE_TOLERANCE = 2e-3


@frozen(kw_only=True)
class Verification:
    """What came out of verifying one kernel on one target.

    Attributes:
        kernel: its name.
        target: "cpu", "tle-emulated", "gluon" or "tle".
        error: largest relative RMS error of a problem; infinity where a result is missing.
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
    options = oracle_options(kernel)
    made = problems(kernel, seed=seed, emulated=target in EMULATED)
    worst, failure = 0.0, None
    for name, problem in made:
        error, failure = _run_one(kernel, target, problem, options, allowed, seed, device)
        worst = max(worst, error)
        if failure:
            failure = f"{kernel.name} on {target}, {name}: {failure}"
            break
    seconds = time.perf_counter() - start
    return Verification(kernel=kernel.name, target=target, error=worst, tolerance=allowed, problems=len(made), seconds=seconds, failure=failure)


def _run_one(kernel: Kernel, target: str, problem: DecodeProblem | PrefillProblem | StatesProblem, options: dict[str, Any], allowed: float, seed: int, device: Any) -> tuple[float, str | None]:
    """(relative RMS error, failure) of one problem."""
    import torch

    from .runtime import plan
    from .testing import compare, compare_lse, relative_rms

    epilogue = kernel.mainloop.epilogue
    with_lse = epilogue.lse != "none"
    expected, expected_lse = problem.reference(lse_base=epilogue.lse if with_lse else None, p_quant=None, **options)
    made = plan(kernel, **problem.geometry, target=target, seed=seed, device=device)
    placed = problem.to(made.device)
    for name in set(made.workspace) - set(made.ZEROED):
        made.workspace[name].view(torch.uint8).fill_(0xFF)  # NaN, or -1
    out = placed.new_output(torch.float32 if epilogue.dtype is DType.F32 else torch.bfloat16)
    lse = torch.full(out.shape[:2], math.nan, device=made.device) if with_lse else None
    try:
        made.run(**placed.inputs, out=out, lse=lse)
        error = relative_rms(out.cpu(), expected)
        compare(out.cpu(), expected, rms=allowed, name_row=problem.name_row)
        if lse is not None and expected_lse is not None:
            compare_lse(lse.cpu(), expected_lse, atol=LSE_TOLERANCE, name_row=problem.name_row)
    except AssertionError as wrong:
        return error, str(wrong)
    except TleAttnError as refused:
        return math.inf, f"{type(refused).__name__}: {refused}"
    return error, None


__all__ = ["EMULATED", "Verification", "oracle_options", "prefill_problem_for", "problem_for", "problems", "quant_type", "tolerance", "verify_kernel"]
