"""Kernels of an export on the GPU: loaded and launched by the driver alone, right, and bit for bit what a compiled plan gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tle_attn
from tests.exports.serving import serve
from tests.gpu import kernels
from tests.gpu.helpers import compare_out, problem_for, run
from tle_attn.build import compile_count
from tle_attn.exports import export

RECIPES = (kernels.DYNAMIC, kernels.STATIC, kernels.FP8, kernels.FP8_PER_TOKEN)
GEOMETRY = {"query_heads": 8, "kv_heads": 1}


@pytest.fixture(scope="module", params=RECIPES)
def exported(request, tmp_path_factory):
    """(recipe, folder of its export at the default point and at another page)."""
    folder = tmp_path_factory.mktemp("exports") / "export"
    export(request.param, folder, axes={"problem.query_tokens": [1], "problem.page": [64, 32]})
    return request.param, folder


@pytest.mark.parametrize("page", [64, 32])
def test_equal_to_the_oracle_and_to_what_is_compiled(exported, page):
    recipe, folder = exported
    config = kernels.config(recipe, 1, page=page)
    problem = problem_for(config, seed=50)
    compiled = config.plan(len(problem.kv_lens))
    plan = tle_attn.load(folder).plan(batch=len(problem.kv_lens), page=page, **GEOMETRY)
    assert (plan.slots, plan.tasks) == (compiled.slots, compiled.tasks)
    out, _ = run(plan, problem)
    compare_out(plan, problem, out)
    assert torch.equal(out, run(compiled, problem)[0])


def test_in_a_graph_with_other_lengths(exported):
    recipe, folder = exported
    problem = problem_for(kernels.config(recipe), (5000,) * 8, seed=51, poison=False)
    plan = tle_attn.load(folder).plan(batch=8, **GEOMETRY)
    out = problem.new_output()
    run(plan, problem, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(plan, problem, out)
    for lengths in ((5000,) * 8, (3, 4999, 640, 0, 0, 0, 0, 0), (64,) * 8):
        problem.kv_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        compare_out(plan, problem, out)


def test_serving_compiles_nothing(exported):
    recipe, folder = exported
    if recipe != kernels.DYNAMIC:
        pytest.skip("once is enough")
    before = compile_count()
    loaded = tle_attn.load(folder)
    serve(lambda batch: loaded.plan(batch=batch, **GEOMETRY), 64, "cuda")
    assert compile_count() == before


def test_serving_a_compiled_plan_compiles_nothing_after_its_first():
    recipe = tle_attn.load(kernels.DYNAMIC)
    recipe.plan(batch=1, **GEOMETRY)
    before = compile_count()
    serve(lambda batch: recipe.plan(batch=batch, **GEOMETRY), 64, "cuda")
    assert compile_count() == before


def test_without_triton(exported):
    """In a process in which Triton cannot be imported."""
    recipe, folder = exported
    if recipe != kernels.DYNAMIC:
        pytest.skip("once is enough")
    code = f"""
import sys
sys.modules["triton"] = None
import tle_attn
from tle_attn.testing import compare, make_decode_problem

problem = make_decode_problem([64, 0, 700, 5003], heads=(8, 1), device="cuda")
plan = tle_attn.load({str(folder)!r}).plan(batch=4, query_heads=8, kv_heads=1)
out, _ = plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens, out=problem.new_output())
compare(out, problem.reference()[0], rms=4e-3)
"""
    subprocess.run([sys.executable, "-c", code], cwd=Path(tle_attn.__file__).parent.parent, check=True)
