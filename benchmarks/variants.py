"""Variants of recipes that are measured side by side."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

import tle_attn
from benchmarks.compare import BASELINE
from tle_attn.cli.options import read_setting
from tle_attn.report.timing import capture
from tle_attn.runtime.inputs import torch_dtype
from tle_attn.spec import Kernel
from tle_attn.testing import DecodeProblem, PrefillProblem
from tle_attn.verify import verify_kernel


@frozen
class Variant:
    """A recipe with options replaced."""

    name: str
    recipe: str
    options: tuple[tuple[str, Any], ...] = ()

    def kernel(self, **problem: Any) -> Kernel:
        """The checked kernel; keyword arguments set keys of [problem]."""
        return tle_attn.load(self.recipe).set(dict(self.options)).kernel(**problem)


def parse_variant(text: str, recipe: str, shared: Iterable[tuple[str, Any]] = ()) -> Variant:
    """"deep:ring.stages=4,reduce.poll_above=0" to a variant; the key `recipe` chooses another recipe; `shared` options come first."""
    name, separator, options = text.partition(":")
    if not name or (separator and not options):
        raise ValueError(f"variant {text!r}: NAME or NAME:KEY=VALUE,KEY=VALUE is wanted")
    merged = dict(shared) | dict(read_setting(part) for part in options.split(",") if part)
    recipe = merged.pop("recipe", recipe)
    return Variant(name, recipe, tuple(merged.items()))


def verified(kernel: Kernel) -> float:
    """The error of a kernel on ragged problems on the GPU; AssertionError if it is wrong."""
    result = verify_kernel(kernel, "gluon")
    if not result.ok:
        raise AssertionError(result.failure)
    return result.error


def captured(kernel: Kernel, problem: DecodeProblem | PrefillProblem, given: Mapping[str, Any]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of one run that was planned before, and the output of a run, poisoned first; `given`: arguments of the kernel's blocks."""
    plan = tle_attn.plan(kernel, **problem.geometry)
    out, lse = plan.run(**problem.inputs, **given, out=problem.new_output(torch_dtype(kernel.mainloop.epilogue.dtype)))
    return capture(lambda: plan.run(**problem.inputs, **given, out=out, lse=lse, scheduled=kernel.mainloop.schedule.PLANNED)), out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of every benchmark that measures variants beside the baseline."""
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:KEY=VALUE,...", help="measure this variant (key `recipe`: another recipe)")
    parser.add_argument("--set", action="append", default=[], dest="options", metavar="KEY=VALUE", help="set an option in every variant (repeatable)")
    parser.add_argument("--samples", type=int, default=40, help="replays of which the median counts, at least 30")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--out", type=Path, help="write the record here")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile")


def parse_arguments(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Parse them; an error ends the process, as argparse does."""
    options = parser.parse_args(argv)
    if options.samples < 30:
        parser.error(f"--samples {options.samples}: the median of fewer than 30 replays is not what the baseline is")
    return options
