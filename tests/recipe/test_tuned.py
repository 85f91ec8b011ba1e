"""Tuned files: written, read back, used where they are asked for, and named in a warning where they do not fit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

import tle_attn
from tle_attn.errors import SpecError, TunedWarning
from tle_attn.recipe import Recipe, load
from tle_attn.recipe.tuned import Tuned, read_tuned, tuned_file, write_tuned
from tle_attn.spec.flat import spec_digest
from tle_attn.testing import compare, make_decode_problem

GPU = "NVIDIA H200"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text('summary = "mine"\nextends = "hy3/decode_bf16"\n')
    return path


def result(recipe: Recipe, options: dict[str, Any], point: dict[str, Any] | None = None, **changed: Any) -> Tuned:
    kernel = recipe.kernel(point)
    values = dict(
        spec=spec_digest(kernel), point={"page": kernel.problem.page, "dtype": kernel.problem.dtype.value}, options=options, us={"uniform_512": 8.25}, us_before={"uniform_512": 9.5},
        gpu=GPU, date="2026-01-31", versions={"tle_attn": tle_attn.__version__, "triton": "3.6.0"},
    )  # fmt: skip
    return Tuned(**{**values, **changed})


def kernel_and_warnings(file: Path, tuned: Any = GPU, **problem: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = load(file, tuned=tuned).kernel(**problem)
    assert all(w.category is TunedWarning for w in caught)
    return kernel, [str(w.message) for w in caught]


def test_written_and_read_back(file: Path) -> None:
    recipe = load(file)
    results = [result(recipe, {"ring.stages": 2, "loader.evict_first": False, "softmax.maximum": 'a "word"'}), result(recipe, {}, {"problem.page": 16})]
    path = write_tuned(recipe, results)
    assert path == file.parent / "tuned" / "nvidia_h200" / "mine.toml" == tuned_file(recipe, GPU)
    assert read_tuned(path) == results


def test_a_result_takes_the_place_of_the_earlier_one(file: Path) -> None:
    recipe = load(file)
    first, other, second = result(recipe, {"ring.stages": 2}), result(recipe, {}, {"problem.page": 16}), result(recipe, {"ring.stages": 1}, date="2026-02-01")
    write_tuned(recipe, [first, other])
    assert read_tuned(write_tuned(recipe, [second])) == [other, second]


def test_used_only_where_it_is_asked_for(file: Path) -> None:
    recipe = load(file)
    write_tuned(recipe, [result(recipe, {"ring.stages": 2, "mainloop.ctas_per_sm": 1})])
    assert recipe.kernel().mainloop.ring.stages == 3
    kernel, told = kernel_and_warnings(file)
    assert (kernel.mainloop.ring.stages, kernel.mainloop.ctas_per_sm, told) == (2, 1, [])
    assert kernel == recipe.set({"ring.stages": 2, "mainloop.ctas_per_sm": 1}).kernel()


def test_points_have_their_own_results(file: Path) -> None:
    recipe = load(file)
    write_tuned(recipe, [result(recipe, {"ring.stages": 2}, {"problem.page": 16}), result(recipe, {"ring.stages": 1})])
    assert [kernel_and_warnings(file, page=page)[0].mainloop.ring.stages for page in (16, 64)] == [2, 1]


def test_another_spec(file: Path) -> None:
    recipe = load(file)
    path = write_tuned(recipe, [result(recipe, {"ring.stages": 2})])
    for problem in ({"page": 32}, {"group": 4}):
        kernel, (told,) = kernel_and_warnings(file, **problem)
        assert kernel == recipe.kernel(**problem) and str(path) in told and "is for other specs" in told
    file.write_text(file.read_text() + "[epilogue]\nlse = 'e'\n")
    kernel, (told,) = kernel_and_warnings(file)
    assert kernel.mainloop.ring.stages == 3 and "is for other specs" in told


def test_another_version(file: Path) -> None:
    recipe = load(file)
    path = write_tuned(recipe, [result(recipe, {"ring.stages": 2}, versions={"tle_attn": "0.0.1"})])
    kernel, (told,) = kernel_and_warnings(file)
    assert kernel.mainloop.ring.stages == 3 and f"{path} was measured with tle_attn 0.0.1, and this is {tle_attn.__version__}" in told


def test_another_gpu(file: Path) -> None:
    recipe = load(file)
    path = write_tuned(recipe, [result(recipe, {"ring.stages": 2})])
    kernel, (told,) = kernel_and_warnings(file, "NVIDIA H100 80GB HBM3")
    assert kernel.mainloop.ring.stages == 3 and f"{path} is for another GPU: this GPU is NVIDIA H100 80GB HBM3" in told


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_this_machine_without_a_gpu(file: Path) -> None:
    recipe = load(file)
    write_tuned(recipe, [result(recipe, {"ring.stages": 2})])
    assert "is for another GPU: there is no GPU here" in kernel_and_warnings(file, True)[1][0]


def test_never_tuned(file: Path) -> None:
    assert kernel_and_warnings(file)[1] == [f"mine: no tuned options are used: it was never tuned on {GPU}"]


def test_plans_take_them(file: Path) -> None:
    recipe = load(file)
    write_tuned(recipe, [result(recipe, {"ring.stages": 2})])
    problem = make_decode_problem([3, 200])
    plan = tle_attn.plan(str(file), batch=2, query_heads=8, kv_heads=1, target="cpu", tuned=GPU)
    assert plan.kernel.mainloop.ring.stages == 2
    out, _ = plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens, out=problem.new_output())
    compare(out, problem.reference()[0], rms=4e-3)
    with pytest.raises(tle_attn.errors.InputError, match="tuned: give it to tle_attn.load"):
        tle_attn.plan(recipe, batch=2, query_heads=8, kv_heads=1, target="cpu", tuned=GPU)


def test_damaged_file(file: Path) -> None:
    recipe = load(file)
    path = write_tuned(recipe, [result(recipe, {})])
    for text in ("[[tuned]", "[[tuned]]\nwrong = 1\n", "tuned = 7\n"):
        path.write_text(text)
        with pytest.raises(SpecError, match="no tuned file"):
            load(file, tuned=GPU).kernel()


def test_a_recipe_made_in_python_has_no_place_for_them() -> None:
    with pytest.raises(SpecError, match="composed in Python"):
        tuned_file(evolve(load("hy3/decode_bf16"), file=None), GPU)


def test_library_files_are_no_recipes() -> None:
    assert tuned_file(load("hy3/decode_bf16"), GPU).parts[-4:] == ("tuned", "nvidia_h200", "hy3", "decode_bf16.toml")
    assert not [name for name in tle_attn.list_recipes() if "tuned" in name]
