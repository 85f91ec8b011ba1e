"""What composition costs: time a hand-written decode kernel of the same algorithm, `python -m benchmarks.trial --trial DIR --out FILE`.

DIR holds the hand-written kernels (kernels.py with `k1ws`, a warp-specialised S^T kernel, and plan.py with `plan_fit`).  They are timed as
`benchmarks.decode` times recipes, on its workloads, one query token, NHD; their plans are made on the host.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import compare, floor, workloads
from benchmarks.decode import line, table
from benchmarks.records import Record, command_line
from benchmarks.watchdog import watch
from tle_attn.build import versions
from tle_attn.report.timing import Timer, capture
from tle_attn.testing import WORKLOADS, DecodeProblem, relative_rms

#: Relative RMS error: rounding P and the output to bf16 gives 2e-3.
ALLOWED_ERROR = 4e-3
#: Tasks of the plan (2 per SM of an H200) and pages of a task at least, as the recipe's task map.
SLOTS, MIN_PAGES = 264, 8
OPTIONS: dict[str, Any] = {"ST": 3, "N": 8, "FP8": False, "MERGE": 5, "UN": 8, "PDL": False, "num_warps": 4, "maxnreg": 128}


def launcher(kernels: Any, plans: Any, problem: DecodeProblem, case: str, out: torch.Tensor) -> Any:
    """A function that launches the hand-written kernel once."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = gl.NVMMASharedLayout(128, 16, rank=4)
    box = [1, 1, workloads.PAGE, workloads.HEAD_DIM]
    k, v = (TensorDescriptor.from_tensor(c.permute(0, 2, 1, 3), box, layout) for c in (problem.k_cache, problem.v_cache))
    plan = plans.plan_fit(list(WORKLOADS[case]), SLOTS, MIN_PAGES)
    make = {"dtype": torch.float32, "device": out.device}
    records = torch.from_numpy(plan["rec"]).to(out.device)
    partial_o, partial_ml = torch.empty(plan["nslots"] * 8 * workloads.HEAD_DIM, **make), torch.empty(plan["nslots"] * 16, **make)
    counters = torch.zeros(2 * len(problem.kv_lens) + 8, dtype=torch.int32, device=out.device)
    one = torch.ones(1, **make)
    scale = math.log2(math.e) / math.sqrt(workloads.HEAD_DIM)
    args = (k, v, problem.q, problem.block_ids, records, out, partial_o, partial_ml, counters, one, one, one, problem.block_ids.shape[1], plan["maxseg"], scale)
    return lambda: kernels.k1ws[(plan["grid"],)](*args, **OPTIONS)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trial", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trial", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--samples", type=int, default=40)
    options = parser.parse_args(argv)
    sys.path.insert(0, str(options.trial))
    kernels, plans = importlib.import_module("kernels"), importlib.import_module("plan")
    timer, baseline = Timer(options.samples), compare.read_baseline()
    command = command_line("benchmarks.trial", sys.argv[1:] if argv is None else argv, ("--out", "--trial"))
    record = Record("A hand-written kernel of the decode recipe's algorithm, planned on the host.", versions(), command)
    for case in WORKLOADS:
        problem = workloads.decode_problem(case, query_tokens=1, layout="NHD")
        measured = floor.measure(problem, timer, case)
        out = problem.new_output()
        launch = launcher(kernels, plans, problem, case, out)
        with watch(f"{case}: compile and first launch", 60):
            launch()
            torch.cuda.synchronize()
        error = relative_rms(out, problem.reference()[0])
        if not error <= ALLOWED_ERROR:
            print(f"{case}: relative RMS error {error:.3g}, allowed {ALLOWED_ERROR:.3g}")
            return 1
        with watch(case):
            graph = capture(launch)
            times = {"us": timer.us(graph), "us_cold": timer.us_cold(graph)}
        row = {"kernel": "hand-written k1ws", "case": case, "dtype": "bf16", "quant": None, "mtp": 1, "layout": "NHD", "hq": 8, "hkv": 1, **times}
        row |= {"floor_us": measured.us, "floor_us_cold": measured.us_cold, "us_plan": None, "us_with_plan": None, "rel_rms": error}
        record.rows.append(row)
        print(line(row, baseline), flush=True)
        if options.out:
            record.save(options.out)
    print("\n".join([*table(record.rows, list(WORKLOADS)), *map(str, compare.summarize(record.rows, baseline))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
