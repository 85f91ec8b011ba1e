"""Time decode recipes on the benchmark's workloads: `python -m benchmarks.decode --recipe hy3/decode_bf16 --out FILE`.

Every case is checked against the float64 oracle first, its output poisoned.  Times are of one call in a CUDA graph (tle_attn/report/timing.py):
`us` and `us_cold` of the attention kernel alone with a task map made before (as the baseline's), `us_plan` of the planner, `us_with_plan` of
both.  Every time has the launch of a graph inside, but for `us_b2b`: one of 20 calls in a graph.  Exit status: 0, or 1 if a case was wrong or failed, 3 after a hang, 4 after a CUDA error.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from typing import Any

import torch
from attrs import define, field

import tle_attn
from benchmarks import compare, floor, workloads
from benchmarks.compiling import compile_all
from benchmarks.records import Record, command_line, described
from benchmarks.variants import Variant, add_arguments, parse_arguments, parse_variant
from benchmarks.watchdog import watch
from tle_attn.build import has_hopper, versions
from tle_attn.cli.options import read_setting
from tle_attn.report.timing import SPIN_CYCLES, Timer, capture
from tle_attn.runtime import Plan
from tle_attn.spec import Kernel
from tle_attn.testing import WORKLOADS, DecodeProblem, relative_rms
from tle_attn.testing.paged import Quant
from tle_attn.verify import quant_type, tolerance


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="hy3/decode_bf16", help="name of a library recipe, or a .toml file")
    parser.add_argument("--cases", nargs="+", default=["all"], choices=["all", *WORKLOADS], metavar="CASE", help="all, or some of: " + ", ".join(WORKLOADS))
    parser.add_argument("--mtp", nargs="+", type=int, default=[1], help="query tokens per request")
    parser.add_argument("--layouts", nargs="+", default=["NHD"], choices=["NHD", "HND"])
    parser.add_argument("--page", type=int, default=workloads.PAGE)
    add_arguments(parser)
    parser.add_argument("--dry", action="store_true", help="do everything but what needs a GPU")
    options = parse_arguments(parser, argv)
    options.cases = list(WORKLOADS) if "all" in options.cases else options.cases
    try:
        shared = [read_setting(o) for o in options.options]
        options.variants = [parse_variant(v, options.recipe, shared) for v in options.variant] or [Variant(options.recipe, options.recipe, tuple(shared))]
    except ValueError as error:
        parser.error(str(error))
    return options


@define
class Bench:
    """One run: what is measured, and what has been."""

    options: argparse.Namespace
    kernels: dict[tuple[str, int], Kernel]  #: (variant, query tokens) -> kernel
    record: Record
    baseline: dict[compare.Key, compare.Times]
    timer: Timer | None  #: None in a dry run
    plans: dict[tuple[str, int, int], Plan] = field(factory=dict)
    failures: int = 0

    def run(self) -> None:
        for case in self.options.cases:
            for layout in self.options.layouts:
                floors: dict[int | None, floor.Floor] = {}
                for mtp, quant in itertools.product(self.options.mtp, self.quants):
                    variants = [v for v in self.options.variants if (v.name, mtp) in self.kernels and quant_type(self.kernels[v.name, mtp]) == quant]
                    if not variants:
                        continue
                    label = f"{case} {layout} mtp {mtp}" + ("" if quant is None else f" quant {quant}")
                    device = "cuda" if self.timer else "cpu"
                    problem = workloads.decode_problem(case, query_tokens=mtp, layout=layout, page=self.options.page, quant=quant, device=device)
                    if self.timer:
                        if quant not in floors:
                            floors[quant] = floor.measure(problem, self.timer, label)
                        with watch(f"{label}: oracle", 60):
                            reference, _ = problem.reference(p_quant=None)
                    for variant in variants:
                        row = self.row(variant, case, mtp, layout)
                        if self.timer:
                            row |= {"floor_us": floors[quant].us, "floor_us_cold": floors[quant].us_cold}
                            self.measure(row, variant, problem, reference, f"{variant.name}, {label}")
                        self.record.rows.append(row)
                        print(line(row, self.baseline), flush=True)
                        if self.options.out:
                            self.record.save(self.options.out)

    @property
    def quants(self) -> list[Quant]:
        """Quant types of the kernels, in their order; each has problems and a floor of its own."""
        return list(dict.fromkeys(quant_type(k) for k in self.kernels.values()))

    def row(self, variant: Variant, case: str, mtp: int, layout: str) -> dict[str, Any]:
        times = dict.fromkeys(("us", "us_cold", "us_b2b", "floor_us", "floor_us_cold", "us_plan", "us_with_plan", "rel_rms"))
        heads = {"hq": workloads.HEADS[0], "hkv": workloads.HEADS[1]}
        kernel = self.kernels[variant.name, mtp]
        types = {"dtype": kernel.problem.dtype.value, "quant": quant_type(kernel)}
        return {"kernel": variant.name, "case": case, **types, "mtp": mtp, "layout": layout, **heads, **times}

    def plan(self, variant: Variant, problem: DecodeProblem) -> Plan:
        """Cases with the same geometry share a plan."""
        key = (variant.name, problem.query_tokens, len(problem.kv_lens))
        if key not in self.plans:
            kernel = self.kernels[key[:2]]
            self.plans[key] = tle_attn.plan(kernel, batch=key[2], query_heads=workloads.HEADS[0], kv_heads=workloads.HEADS[1])
        return self.plans[key]

    def measure(self, row: dict[str, Any], variant: Variant, problem: DecodeProblem, reference: torch.Tensor, label: str) -> None:
        try:
            plan = self.plan(variant, problem)
            with watch(label):
                self.time_checked(row, plan, problem, reference)
        except (tle_attn.errors.TleAttnError, RuntimeError, AssertionError) as error:
            self.failures += 1
            print(f"FAILED {label}: {error}", flush=True)
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                print("the CUDA context is lost: this process ends", flush=True)
                os._exit(4)

    def time_checked(self, row: dict[str, Any], plan: Plan, problem: DecodeProblem, reference: torch.Tensor) -> None:
        tensors = (problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)
        scales = {} if not problem.is_fp8 else {"q_scale": problem.q_scale, "k_scale": problem.k_scale, "v_scale": problem.v_scale}
        allowed, _ = tolerance(plan.kernel)
        out = problem.new_output()
        planned = plan.kernel.mainloop.schedule.PLANNED

        def attend() -> None:
            plan.run(*tensors, out=out, scheduled=planned, **scales)

        def both() -> None:
            plan.run(*tensors, out=out, **scales)

        both()
        torch.cuda.synchronize()
        row["rel_rms"] = relative_rms(out, reference)
        if not row["rel_rms"] <= allowed:
            lost = f"{int((~out.isfinite()).sum())} of {out.numel()} elements not finite"
            raise AssertionError(f"relative RMS error {row['rel_rms']:.3g}, allowed {allowed:.3g}; {lost}")
        first = out.clone()
        graph = capture(attend)
        times = {"us": self.timer.us(graph), "us_cold": self.timer.us_cold(graph), "us_b2b": self.timer.us_back_to_back(attend)}
        if planned:
            times["us_plan"] = self.timer.us(capture(lambda: plan.schedule(**problem.lengths)))
            times["us_with_plan"] = self.timer.us(capture(both))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(out, first):
            raise AssertionError(f"a replay gave another result: relative RMS error {relative_rms(out, reference):.3g}")
        row |= times


def compiled_variants(options: argparse.Namespace) -> tuple[dict[tuple[str, int], Kernel], dict[tuple[str, int], dict[str, Any]]]:
    """Kernels and what the compiler says of them, by (variant, query tokens); those that cannot be composed or compiled are named and left out."""
    kernels: dict[tuple[str, int], Kernel] = {}
    for variant in options.variants:
        for mtp in options.mtp:
            try:
                kernel = variant.kernel(query_tokens=mtp, group=workloads.HEADS[0] // workloads.HEADS[1], page=options.page)
            except tle_attn.errors.TleAttnError as error:
                print(f"FAILED {variant.name} mtp {mtp}: {error}")
                continue
            if kernel.problem.head_dim != workloads.HEAD_DIM:
                print(f"FAILED {variant.name} mtp {mtp}: head_dim {kernel.problem.head_dim}; the workloads have head_dim {workloads.HEAD_DIM}")
                continue
            kernels[variant.name, mtp] = kernel
    facts = compile_all(kernels, options.jobs) if kernels else {}
    for key, result in facts.items():
        if isinstance(result, Exception):
            print(f"FAILED {key[0]} mtp {key[1]}: {result}")
            del kernels[key]
    return kernels, {key: facts[key] for key in kernels}


def line(row: dict[str, Any], baseline: dict[compare.Key, compare.Times]) -> str:
    """One row for the console: warm/cold times, ratios to the baseline (above 1: faster) and to the floor."""
    head = f"{row['kernel']:24s} {row['case']:15s} {row['layout']} mtp {row['mtp']}"
    if row["us"] is None:
        return f"{head}  not timed"
    base = baseline.get(compare.key_of(row))
    ratio = f"{base.us:.1f}/{base.us_cold:.1f} = x{base.us / row['us']:.2f}/{base.us_cold / row['us_cold']:.2f}" if base else "none"
    plan = "" if row["us_plan"] is None else f"  plan {row['us_plan']:.1f}, with it {row['us_with_plan']:.1f}"
    over = f"{row['floor_us']:.1f}/{row['floor_us_cold']:.1f} + {row['us'] - row['floor_us']:.1f}/{row['us_cold'] - row['floor_us_cold']:.1f}"
    return f"{head}  {row['us']:.1f}/{row['us_cold']:.1f} us  baseline {ratio}  floor {over}{plan}  err {row['rel_rms']:.1e}"


def table(rows: list[dict[str, Any]], cases: list[str]) -> list[str]:
    """One line for each kernel, layout and mtp: warm/cold times of all cases; the floor likewise."""
    lines = ["us warm/cold of " + ", ".join(cases)]
    cells: dict[tuple[str, int, str], dict[str, str]] = {}
    for row in rows:
        pages = row["dtype"] if row["quant"] is None else f"{row['dtype']} quant {row['quant']}"
        for name, keys in ((f"read floor {pages}", ("floor_us", "floor_us_cold")), (row["kernel"], ("us", "us_cold"))):
            if row[keys[0]] is not None:
                cells.setdefault((name, row["mtp"], row["layout"]), {})[row["case"]] = f"{row[keys[0]]:.1f}/{row[keys[1]]:.1f}"
    for (name, mtp, layout), found in cells.items():
        lines.append(f"{name:32s} mtp {mtp} {layout} " + " ".join(f"{found.get(case, '-'):>9s}" for case in cases))
    return lines


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    if not options.dry and not has_hopper():
        sys.exit("timing needs an NVIDIA Hopper GPU (compute capability 9.0), and there is none here; --dry does everything else")
    kernels, facts = compiled_variants(options)
    if not kernels:
        return 1
    for dtype in {k.problem.dtype for k in kernels.values()}:
        for ctas_per_sm in floor.CTAS_PER_SM:
            for hints in (False, True):
                floor.compiled(dtype.value, options.page, workloads.HEAD_DIM, options.page * workloads.HEAD_DIM * dtype.nbytes, ctas_per_sm, hints)
    measured = {}
    for variant in options.variants:
        by_mtp = {f"mtp {mtp}": facts[variant.name, mtp] for mtp in options.mtp if (variant.name, mtp) in facts}
        measured[variant.name] = {"recipe": variant.recipe, "options": dict(variant.options), "compiled": by_mtp}
    settings: dict[str, Any] = {"kernels": measured, "page": options.page, "samples": options.samples, "spin_cycles": SPIN_CYCLES}
    for label, kernel_facts in facts.items():
        print(f"{label[0]} mtp {label[1]}: " + "; ".join(f"{e}: {', '.join(f'{k} {v}' for k, v in f.items())}" for e, f in kernel_facts.items()))
    timer = None
    if not options.dry:
        timer = Timer(options.samples)
        settings["null_graph_us"] = round(timer.null_graph_us(), 2)
        print(f"{versions()}  null graph {settings['null_graph_us']} us", flush=True)
    command = command_line("benchmarks.decode", sys.argv[1:] if argv is None else argv)
    record = Record(what=described(__doc__), versions=versions(), command=command, settings=settings)
    bench = Bench(options, kernels, record, compare.read_baseline(options.baseline), timer, failures=len(options.variants) * len(options.mtp) - len(kernels))
    bench.run()
    print("\n".join(table(record.rows, options.cases)))
    for summary in compare.summarize(record.rows, bench.baseline):
        print(summary)
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
