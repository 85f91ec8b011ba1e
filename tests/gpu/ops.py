"""Every operation of the dialect on the GPU, in the emulation and in float64: `python -m tests.gpu.ops --out FILE`.

The kernels are those of tests/dialect/op_kernels.  Each runs in a process of its own, so that one that hangs or loses the CUDA context
spoils no other.  Differences are the largest ones of all written tensors, relative to the largest expected value.
Exit status: 0 if all are right.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.records import Record, command_line
from tests.dialect.op_cases import CASES, Box, OpCase, kernel_text
from tle_attn import emu
from tle_attn.build import CompiledKernel, Descriptor, compile_module, descriptor, has_hopper, versions
from tle_attn.codegen.prelude import whole

SEEDS = (0, 1, 2)
SECONDS = 60
BY_NAME = {case.kernel: case for case in CASES}
#: Triton's names of types where the emulation's differ
EMULATED_TYPES = {"fp32": "f32", "fp16": "f16", "fp8e4nv": "fp8"}

Arguments = dict[str, Any]


def dialect_text(target: str) -> str:
    return whole(target)


def compiled(kernel: str) -> CompiledKernel:
    """The kernel for sm_90a; needs no GPU."""
    case = BY_NAME[kernel]
    signature = {name: Descriptor(kind.dtype, kind.block_shape) if isinstance(kind, Box) else kind for name, kind in case.signature.items()}
    return compile_module(dialect_text("gluon") + kernel_text(), kernel, signature, num_warps=case.warps, launch_pdl=case.launch_pdl)


def on_gpu(case: OpCase, before: Arguments) -> Arguments:
    """The arguments after a launch on the GPU."""
    after = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in copy.deepcopy(before).items()}
    values = []
    for name, kind in case.signature.items():
        value = after[name]
        values.append(descriptor(value, value.shape, value.stride(), kind.block_shape, kind.dtype) if isinstance(kind, Box) else value)
    compiled(case.kernel).launch(case.grid, values)
    torch.cuda.synchronize()
    return after


def emulated(case: OpCase, before: Arguments, seed: int) -> Arguments:
    """The arguments after a launch in the emulation."""
    after = copy.deepcopy(before)
    arguments = {}
    for name, kind in case.signature.items():
        if isinstance(kind, Box):
            value = after[name]
            arguments[name] = ("descriptor", emu.TensorDescriptor(value, list(value.shape), list(value.stride()), list(kind.block_shape)))
        else:
            pointee = kind.removeprefix("*")
            arguments[name] = (kind.replace(pointee, EMULATED_TYPES.get(pointee, pointee)), after[name])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "op_kernels_cpu.py"
        path.write_text(dialect_text("cpu") + "\n\n" + kernel_text())
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        emu.launch(getattr(module, case.kernel), case.grid, arguments, cluster=case.cluster, threads=32 * case.warps, seed=seed)
    return after


def difference(got: Arguments, want: Arguments, scale: Arguments) -> float:
    """Largest difference of the tensors named by `scale`, relative to each one's largest value there."""
    worst = 0.0
    for name, expected in scale.items():
        a, b = got[name].cpu().double().reshape(-1), want[name].cpu().double().reshape(-1)
        difference = (a - b).abs().max() / expected.double().abs().max().clamp(min=1e-30)
        worst = max(worst, float(torch.nan_to_num(difference, nan=torch.inf)))
    return worst


def rounded(expected: Arguments, got: Arguments) -> Arguments:
    """The expected values in the types of the tensors that a kernel writes."""
    return {name: value.to(got[name].dtype) for name, value in expected.items()}


def compare(kernel: str) -> Arguments:
    """A row of the record."""
    case = BY_NAME[kernel]
    differences = {"gpu_vs_float64": 0.0, "gpu_vs_emulation": 0.0, "emulation_vs_float64": 0.0}
    for seed in SEEDS:
        before = case.inputs(torch.Generator().manual_seed(seed))
        expected = case.expected(before)
        gpu, cpu = on_gpu(case, before), emulated(case, before, seed)
        want = rounded(expected, cpu)
        for name, pair in (("gpu_vs_float64", (gpu, want)), ("gpu_vs_emulation", (gpu, cpu)), ("emulation_vs_float64", (cpu, want))):
            differences[name] = max(differences[name], difference(*pair, expected))
    right = max(differences["gpu_vs_float64"], differences["emulation_vs_float64"]) <= case.tolerance
    return {"kernel": kernel, "ops": " ".join(case.ops), **differences, "allowed": case.tolerance, "status": "right" if right else "wrong"}


def in_own_process(kernel: str) -> Arguments:
    """`compare` in a process of its own; a row with the status "hang" or "error" if it does not come back with one."""
    failed = {"kernel": kernel, "ops": " ".join(BY_NAME[kernel].ops), "allowed": BY_NAME[kernel].tolerance}
    try:
        done = subprocess.run([sys.executable, "-m", "tests.gpu.ops", "--one", kernel], capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return failed | {"status": "hang", "error": f"no answer for {SECONDS} s"}
    if done.returncode:
        return failed | {"status": "error", "error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.ops", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/dialect_ops_h200.json"))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes that share the GPU")
    parser.add_argument("--one", choices=sorted(BY_NAME), help="run this kernel alone and print its row")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(compare(options.one)))
        return 0
    if not has_hopper():
        sys.exit("the comparison needs an NVIDIA Hopper GPU (compute capability 9.0), and there is none here")
    what = "Largest relative difference of each kernel of tests/dialect/op_kernels: GPU, emulation and float64, over three inputs."
    record = Record(what, versions(), command_line("tests.gpu.ops", sys.argv[1:]))
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(in_own_process, BY_NAME):
            record.rows.append(row)
            record.save(options.out)
            print(f"{row['status']:6s} {row['kernel']:20s} {row.get('error') or {k: v for k, v in row.items() if '_vs_' in k}}", flush=True)
    wrong = [row["kernel"] for row in record.rows if row["status"] != "right"]
    print(f"{len(record.rows) - len(wrong)} of {len(record.rows)} kernels are right" + (f"; not {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
