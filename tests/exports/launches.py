"""Launches one kernel twice on a stand-in for libcuda: through Triton's own launcher and from an export.  Run by test_against_triton.py.

    python launches.py FOLDER_OF_THE_EXPORT RECIPE ENTRY
"""

from __future__ import annotations

import ctypes
import random
import sys
from types import SimpleNamespace
from typing import Any

import tle_attn
from tle_attn.exports.driver import Driver
from tle_attn.exports.executor import View, loaded_kernels
from tle_attn.runtime.executors import compile_kernel


def arguments(parameters: Any) -> list[Any]:
    """Random arguments: anything with a data_ptr for pointers, a view for descriptors."""
    rng = random.Random(3)
    made: list[Any] = []
    for p in parameters:
        if p.kind == "tensor map":
            shape = tuple(rng.randint(1, 300) for _ in p.box)
            strides = (*(16 * rng.randint(1, 1 << 20) for _ in p.box[1:]), 1)
            made.append(View(rng.randint(1, 1 << 40) * 16, shape, strides))
        elif p.kind == "pointer":
            made.append(SimpleNamespace(data_ptr=lambda address=rng.randint(1, 1 << 40) * 16: address))
        else:
            made.append({"i32": rng.randint(-5, 1 << 30), "i64": rng.randint(-5, 1 << 60), "f32": rng.uniform(-3, 3)}[p.kind])
    return made


def main(folder: str, recipe: str, entry: str) -> None:
    from triton.backends.nvidia.driver import CudaDriver, CudaLauncher
    from triton.runtime import driver as active

    active.set_active(CudaDriver())
    kernel = tle_attn.load(folder).kernel()
    loaded = loaded_kernels(kernel.exported, kernel, (entry,), Driver(ctypes.CDLL("libcuda.so.1")))[entry]
    values = arguments(loaded.entry.parameters)
    loaded.launch((7, 5), values, device=0, stream=0x1230)

    compiled = compile_kernel(tle_attn.load(recipe).kernel(), entry)
    launcher = CudaLauncher(compiled._kernel.src, compiled.metadata)
    described = [
        SimpleNamespace(base=SimpleNamespace(data_ptr=lambda v=v: v.address), shape=list(v.shape), strides=list(v.strides), padding="zero") if isinstance(v, View) else v
        for v in values
    ]
    shape = (compiled.num_warps, compiled.cluster, compiled.shared_bytes)
    launcher(7, 5, 1, 0x1230, 3, shape, None, None, None, *described)


if __name__ == "__main__":
    main(*sys.argv[1:])
