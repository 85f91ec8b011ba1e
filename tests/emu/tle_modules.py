"""TLE modules for the tests: a kernel text behind the tle prelude, or a few lines of plain TLE; written to a file and loaded."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import torch

from tle_attn import emu
from tle_attn.codegen.prelude import prelude
from tle_attn.emu import MARK
from tle_attn.emu.tle_target import check_contract, load_tle_module


def module_source(text: str, micro: str = "") -> str:
    """The whole module of a kernel text; `micro` is target code that comes between."""
    used = {node.id for node in ast.walk(ast.parse(micro + text)) if isinstance(node, ast.Name)}
    return f'"""A test module."""\n{prelude("tle", used)}\n\n{micro}\n{MARK}\n{text}'


def load_text(folder: Path, text: str, micro: str = "", device_functions: Mapping[str, Callable] | None = None) -> ModuleType:
    """The emulated module of a kernel text."""
    source = module_source(text, micro)
    check_contract(source)
    path = folder / "tle_module.py"
    path.write_text(source)
    return load_tle_module(path, device_functions)


def kernel_text(name: str) -> str:
    """The kernel text of a file in `kernels`."""
    source = (Path(__file__).parent / "kernels" / f"{name}.py").read_text()
    return source.partition(MARK)[2].lstrip("\n")


SNIPPET_HEADER = '''"""A test module."""
import triton
import triton.language as tl
import triton.experimental.tle.language as tle
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.experimental.tle.raw import dialect
import triton.experimental.tle.language.raw as tle_raw


@dialect(name="cuda", file="twice.cu", extern_func_name="twice", deferred=True)
def twice(dst, src):
    ...


@dialect(name="cuda", file="fill.cu", extern_func_name="fill")
def fill(dst):
    ...


@dialect(name="cuda", file="unknown.cu", extern_func_name="unknown")
def unknown(x):
    ...


@triton.constexpr_function
def cluster(n):
    return tle.device_mesh({"block_cluster": [("cluster_x", n)]})


@triton.jit
def nothing():
    pass


@triton.jit
def static_argument(n: tl.constexpr):
    return tl.arange(0, n)


# ==== kernel text: the same for every target
'''


def run_snippet(folder: Path, body: str, header: str = SNIPPET_HEADER) -> tuple[torch.Tensor, torch.Tensor]:
    """Run lines of TLE as a kernel of one CTA; returns the tensors behind its arguments `x` (zeros at first) and `desc`.

    The lines see x (*f32), n (i32, 3), wide (i64, 1), counter (*i32) and desc (boxes [64, 64] of a bf16 tensor [128, 64]).
    """
    path = folder / "snippet.py"
    path.write_text(header + "@triton.jit\ndef kernel(x, n, wide, counter, desc):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n")
    ones = emu.Tile(torch.ones(64).numpy(), emu.F32)
    module = load_tle_module(path, {"twice": lambda dst, src, *more: src + src, "fill": lambda dst: emu.ops.smem_store(dst, ones)})
    # quarters, of which sums of products are exact: a sum that is rounded to bf16 is rounded as the reference's, however it was added
    x, matrix = torch.zeros(4096), (torch.randint(-8, 9, (128, 64)) / 4).bfloat16()
    args = dict(
        x=("*f32", x),
        n=("i32", 3),
        wide=("i64", 1),
        counter=("*i32", torch.zeros(4, dtype=torch.int32)),
        desc=emu.TensorDescriptor(matrix, (128, 64), (64, 1), (64, 64)),
    )
    emu.launch(module.kernel, (1,), args)
    return x, matrix
