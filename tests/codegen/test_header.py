"""Docstrings of generated modules: enough to launch the kernels, and where they come from."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tle_attn
import tle_attn.emu
from tests.codegen.launch_by_header import decode_by_header
from tle_attn.testing import compare


@pytest.mark.parametrize("target", ["gluon", "tle", "cpu"])
@pytest.mark.parametrize("name", tle_attn.list_recipes())
def test_version_licence_and_every_kernel(name: str, target: str) -> None:
    generated = tle_attn.generate(tle_attn.load(name).kernel(), target)
    told = ast.get_docstring(ast.parse(generated.text))
    assert f"tle_attn {tle_attn.__version__}. SPDX-License-Identifier: Apache-2.0" in told
    for entry in generated.entries:
        assert f"Kernel {entry.name}, " in told
        assert (f"emu.launch({entry.name}, grid, arguments)" if target == "cpu" else f"{entry.name}[grid](*arguments, num_warps=4") in told
        for a in entry.arguments:
            assert f"    {a.name}: {a.type} - {a.doc}" in told


def test_an_attention_kernel_says_its_bound_on_registers() -> None:
    """The same that it is compiled with."""
    from tle_attn.checks.resources import register_cap

    kernel = tle_attn.load("hy3/decode_bf16").kernel()
    text = tle_attn.generate(kernel, "gluon").text
    assert f"decode[grid](*arguments, num_warps=4, maxnreg={register_cap(kernel.resources)})" in text and "plan_tasks[grid](*arguments, num_warps=4)\n" in text


def test_the_module_runs_as_its_header_says(tmp_path: Path) -> None:
    out, problem = decode_by_header("cpu", "cpu", tmp_path)
    compare(out, problem.reference()[0], rms=4e-3, name_row=problem.name_row)


def test_the_compile_hook_is_only_where_it_is_used() -> None:
    """A kernel without barriers needs no address of shared memory, and its module leaves the compiler alone."""
    texts = {name: tle_attn.generate(tle_attn.load(name).kernel(), "gluon").text for name in ("merge/stack", "hy3/decode_bf16")}
    assert "add_stages_inspection_hook" not in texts["merge/stack"] and "add_stages_inspection_hook" in texts["hy3/decode_bf16"]
