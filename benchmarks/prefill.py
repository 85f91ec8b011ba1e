"""Time prefill recipes: `python -m benchmarks.prefill --out FILE`, or some groups of cases, `--groups fp8 square`, or some of their names, `--cases 512/32k`.

Groups: fp8, bf16 and contiguous are the CUDA reference's cases; square: long equal sequences, with cuDNN's attention beside bf16; mask: block masks of
several densities; ragged: batches of unequal sequences.  A variant is measured on the cases that its kernel is for: element type, quant type, block
mask, pages.

Rows of every result are checked against float64 first, its output poisoned.  Times are of one call in a CUDA graph (tle_attn/report/timing.py): `us` and
`us_cold` of the attention kernel, with units planned before where a batch has several sequences; `us_plan` of the planner.  `over_dense` of masked and
ragged cases: their time over that of as many 128 x 128 tiles at the rate of a dense 8192 x 8192 of the same run and kind; `over_dense_sustained`: the same of times
under lasting load, `us_sustained`, where a long case and a short one have the same clocks.  Every time has the launch of a graph inside.  Exit status: 0, or 1 if a case was wrong or failed, 3 after a hang, 4 after a CUDA error.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import torch
from attrs import define, field

import tle_attn
from benchmarks import prefill_compare as compare
from benchmarks import prefill_problems
from benchmarks.compiling import compile_all
from benchmarks.cudnn import cudnn_us
from benchmarks.prefill_cases import GROUPS, Case, dense_case, select
from benchmarks.records import Record, command_line, described
from benchmarks.variants import Variant, add_arguments, parse_arguments, parse_variant
from benchmarks.watchdog import watch
from benchmarks.workloads import PAGE
from tle_attn.build import has_hopper, versions
from tle_attn.cli.options import read_setting
from tle_attn.report.timing import SPIN_CYCLES, Timer, capture
from tle_attn.runtime.prefill import consumers_for
from tle_attn.spec import Kernel
from tle_attn.testing import PrefillProblem
from tle_attn.verify import quant_type, tolerance

#: what policies are asked for
H200_MULTIPROCESSORS = 132


def library_variants(shared: list[tuple[str, Any]]) -> list[Variant]:
    """Every prefill recipe of the reference family, with two consumers and with one."""
    names = [name for name in tle_attn.list_recipes() if name.startswith("hy3/prefill")]
    one = ("mainloop.consumers", 1)
    return [Variant(name.removeprefix("hy3/"), name, tuple(shared)) for name in names] + [Variant(f"{name.removeprefix('hy3/')} x1", name, (*shared, one)) for name in names]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default=None, help="recipe of variants that name none; without any variant, the only one measured (default: all of hy3/prefill_*)")
    parser.add_argument("--groups", nargs="+", default=list(GROUPS), choices=GROUPS, metavar="GROUP", help="some of: " + ", ".join(GROUPS))
    parser.add_argument("--cases", nargs="+", default=[], metavar="TEXT", help="only cases whose label holds one of these, for example 512/32k masked '8k fp8'")
    parser.add_argument("--layouts", nargs="+", default=["NHD", "HND"], choices=["NHD", "HND"])
    add_arguments(parser)
    parser.add_argument("--dry", action="store_true", help="compile and list what would be measured")
    options = parse_arguments(parser, argv)
    try:
        shared = [read_setting(o) for o in options.options]
        options.variants = [parse_variant(v, options.recipe or "", shared) for v in options.variant]
        if any(not v.recipe for v in options.variants):
            parser.error("--variant: name a recipe, by --recipe or by the key `recipe`")
        options.policy = not options.variants and not options.recipe
        if not options.variants:
            options.variants = [Variant(options.recipe, options.recipe, tuple(shared))] if options.recipe else library_variants(shared)
    except ValueError as error:
        parser.error(str(error))
    return options


def fits(kernel: Kernel, case: Case, policy: bool) -> bool:
    """Whether the kernel is for tensors as the case has them, and with `policy` what the library's operators would take."""
    if policy and kernel.mainloop.consumers != consumers_for(case.rows, len(case.pairs), case.heads[0], H200_MULTIPROCESSORS):
        return False
    problem, arguments = kernel.problem, kernel.arguments
    features = (problem.dtype.value, quant_type(kernel), "block_mask" in arguments, "block_ids" in arguments)
    return features == (case.dtype, case.quant, case.masked, case.paged) and problem.group == case.heads[0] // case.heads[1]


@define
class Bench:
    """One run: what is measured, and what has been."""

    options: argparse.Namespace
    cases: list[Case]
    kernels: dict[tuple[str, int], Kernel]  #: (variant, group) -> kernel
    record: Record
    baseline: compare.Baseline
    timer: Timer
    executors: dict[tuple[str, int], Any] = field(factory=dict)
    dense_us: dict[tuple[str, str], float] = field(factory=dict)  #: (kind, "us" or "us_sustained") -> best time of the dense case that others are compared with
    cudnn: dict[tuple[Any, ...], float | None] = field(factory=dict)
    failures: int = 0

    def run(self) -> None:
        for case in self.cases:
            fitting = [key for key, kernel in self.kernels.items() if fits(kernel, case, self.options.policy)]
            if not fitting:
                continue
            with watch(f"{case.label}: problem", 60):
                problem = prefill_problems.make_problem(case)
                torch.cuda.synchronize()
            for key in fitting:
                row = self.row(case, key)
                self.measure(row, case, key, problem)
                self.record.rows.append(row)
                print(compare.line(row, self.baseline), flush=True)
                if self.options.out:
                    self.record.save(self.options.out)
            del problem

    def row(self, case: Case, key: tuple[str, int]) -> dict[str, Any]:
        tiles = prefill_problems.kept_tiles(case)
        q, kv = case.pairs[0]
        what = {"group": case.group, "case": case.name, "dtype": case.dtype, "quant": case.quant, "masked": case.masked, "paged": case.paged, "layout": case.layout}
        shape = {"q": q, "kv": kv, "batch": len(case.pairs), "hq": case.heads[0], "hkv": case.heads[1], "flops": case.flops, "tiles": tiles, "skip": 1 - tiles / case.tiles}
        return {"kernel": key[0], **what, **shape, **dict.fromkeys(("us", "us_cold", "us_plan", "cudnn_us", "tflops", "over_dense", "us_sustained", "over_dense_sustained", "rel_rms"))}

    def measure(self, row: dict[str, Any], case: Case, key: tuple[str, int], problem: PrefillProblem) -> None:
        label = f"{key[0]}, {case.label}"
        try:
            with watch(label, 30):
                self.time_checked(row, case, key, problem)
            if case.dtype == "bf16" and case.square:
                row["cudnn_us"] = self.cudnn_time(case)
        except (tle_attn.errors.TleAttnError, RuntimeError, AssertionError) as error:
            self.failures += 1
            print(f"FAILED {label}: {error}", flush=True)
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                print("the CUDA context is lost: this process ends", flush=True)
                os._exit(4)

    def time_checked(self, row: dict[str, Any], case: Case, key: tuple[str, int], problem: PrefillProblem) -> None:
        kernel = self.kernels[key]
        plan = tle_attn.plan(kernel, **problem.geometry, executor=self.executors.get(key))
        self.executors[key] = plan.executor
        planned = kernel.mainloop.schedule.PLANNED
        out = problem.new_output()
        plan.run(**problem.inputs, out=out)
        row["rel_rms"] = prefill_problems.sampled_error(problem, out)
        allowed, _ = tolerance(kernel)
        if not row["rel_rms"] <= allowed:
            raise AssertionError(f"relative RMS error {row['rel_rms']:.3g}, allowed {allowed:.3g}; {int((~out.isfinite()).sum())} of {out.numel()} elements not finite")
        first = out.clone()
        graph = capture(lambda: plan.run(**problem.inputs, out=out, scheduled=planned))
        times = {"us": self.timer.us(graph), "us_cold": self.timer.us_cold(graph)}
        compared = case.group in ("mask", "ragged")
        if compared or case == dense_case(case):
            times["us_sustained"] = self.timer.us_sustained(graph)
        if planned and len(case.pairs) > 1:
            times["us_plan"] = self.timer.us(capture(lambda: plan.schedule(**problem.lengths)))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(out, first):
            raise AssertionError("a replay gave another result")
        row |= times
        row["tflops"] = case.flops * (1 - row["skip"]) / times["us"] / 1e6
        for name, over in (("us", "over_dense"), ("us_sustained", "over_dense_sustained")):
            if case == dense_case(case):
                self.dense_us[case.kind, name] = min(times[name], self.dense_us.get((case.kind, name), times[name]))
            if compared and (case.kind, name) in self.dense_us:
                row[over] = times[name] / (self.dense_us[case.kind, name] * row["tiles"] / dense_case(case).tiles)

    def cudnn_time(self, case: Case) -> float | None:
        """cuDNN's time for the shape, measured once."""
        key = (case.pairs, case.heads)
        if key not in self.cudnn:
            with watch(f"cuDNN, {case.label}", 30):
                self.cudnn[key] = cudnn_us(len(case.pairs), case.pairs[0][0], case.heads, self.timer)
        return self.cudnn[key]


def compiled_variants(options: argparse.Namespace, cases: list[Case]) -> tuple[dict[tuple[str, int], Kernel], dict[tuple[str, int], dict[str, Any]], int]:
    """Kernels that a case is for and what the compiler says of them, by (variant, group), and how many failed; those are named and left out."""
    kernels: dict[tuple[str, int], Kernel] = {}
    failures = 0
    for variant in options.variants:
        for group in dict.fromkeys(c.heads[0] // c.heads[1] for c in cases):
            try:
                kernel = variant.kernel(group=group)
                if "block_ids" in kernel.arguments:
                    kernel = variant.kernel(group=group, page=PAGE)
            except tle_attn.errors.TleAttnError as error:
                print(f"FAILED {variant.name} group {group}: {error}")
                failures += 1
                continue
            if any(fits(kernel, case, options.policy) for case in cases):
                kernels[variant.name, group] = kernel
    facts = compile_all(kernels, options.jobs) if kernels else {}
    for key, result in facts.items():
        if isinstance(result, Exception):
            print(f"FAILED {key[0]} group {key[1]}: {result}")
            failures += 1
            del kernels[key]
    return kernels, {key: facts[key] for key in kernels}, failures


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    if not options.dry and not has_hopper():
        sys.exit("timing needs an NVIDIA Hopper GPU (compute capability 9.0), and there is none here; --dry does everything else")
    cases = select(options.groups, options.cases, options.layouts)
    kernels, facts, failures = compiled_variants(options, cases)
    for (name, group), kernel_facts in facts.items():
        print(f"{name} group {group}: " + "; ".join(f"{e}: {', '.join(f'{k} {v}' for k, v in f.items())}" for e, f in kernel_facts.items()))
    if options.dry:
        print("\n".join(f"{case.label}: {', '.join(name for (name, g), k in kernels.items() if fits(k, case, options.policy)) or 'no variant'}" for case in cases))
        return 1 if failures else 0
    if not kernels:
        return 1
    measured = {v.name: {"recipe": v.recipe, "options": dict(v.options), "compiled": {f"group {g}": facts[n, g] for n, g in facts if n == v.name}} for v in options.variants}
    timer = Timer(options.samples)
    settings: dict[str, Any] = {"kernels": measured, "page": PAGE, "samples": options.samples, "spin_cycles": SPIN_CYCLES, "null_graph_us": round(timer.null_graph_us(), 2)}
    print(f"{versions()}  null graph {settings['null_graph_us']} us", flush=True)
    command = command_line("benchmarks.prefill", sys.argv[1:] if argv is None else argv)
    record = Record(what=described(__doc__), versions=versions(), command=command, settings=settings)
    bench = Bench(options, cases, kernels, record, compare.read_baseline(options.baseline), timer, failures=failures)
    bench.run()
    print("\n".join(compare.summaries(record.rows, bench.baseline)))
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
