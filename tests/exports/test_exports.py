"""Exports: what is written, what is loaded in the recipe's place, what is refused, and that nothing is compiled."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tle_attn
from tests.exports.fake_cuda import FakeExecutor, FakeLibrary
from tests.exports.serving import serve
from tle_attn.build import BuildError, compile_count
from tle_attn.errors import ExportError, SpecError, TargetUnavailable
from tle_attn.exports import MANIFEST, export, read_export
from tle_attn.exports.write import parameters_of
from tle_attn.runtime.decode import plan_decode
from tle_attn.runtime.executors import compile_kernel
from tle_attn.testing import compare, make_decode_problem

pytest.importorskip("triton")
RECIPE = "hy3/decode_bf16"
ROOT = Path(tle_attn.__file__).parent.parent


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of two points; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("exports") / "decode"
    told: list[tuple[int, int, str]] = []
    export(RECIPE, folder, axes={"problem.query_tokens": [1], "problem.page": [64, 16]}, tell=lambda *step: told.append(step))
    assert [done for done, _, _ in told] == [1, 2, 3, 4] and {total for _, total, _ in told} == {4}
    return folder


@pytest.fixture
def changed(exported: Path, tmp_path: Path) -> Path:
    return shutil.copytree(exported, tmp_path / "changed")


def edit(folder: Path, **values: Any) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **values}))


def test_folder_holds_text_machine_code_and_a_manifest(exported: Path) -> None:
    manifest = read_export(exported).manifest
    assert (manifest.architecture, manifest.tle_attn, manifest.licence) == ("sm_90a", tle_attn.__version__, "Apache-2.0")
    assert {"triton", "ptxas", "torch"} <= set(manifest.made_with)
    assert len(manifest.modules) == 2
    for module, page in zip(manifest.modules, (64, 16), strict=True):
        kernel = tle_attn.load(RECIPE).kernel({"problem.page": page})
        assert (exported / module.module).read_text() == tle_attn.generate(kernel, "gluon").text
        for entry in module.entries:
            compiled = compile_kernel(kernel, entry.name)
            assert (exported / entry.cubin).read_bytes() == compiled.asm["cubin"]
            assert (entry.num_warps, entry.shared_bytes, entry.registers) == (compiled.num_warps, compiled.shared_bytes, compiled.facts.registers)
    named = {f for m in manifest.modules for f in (m.module, *(e.cubin for e in m.entries))} | {MANIFEST}
    assert {f.name for f in exported.iterdir()} == named


def test_loading_gives_the_recipe_back(exported: Path) -> None:
    recipe, original = tle_attn.load(exported), tle_attn.load(RECIPE)
    assert (recipe.name, recipe.summary, recipe.tables) == (original.name, original.summary, original.tables)
    assert recipe.axes == {"problem.query_tokens": (1,), "problem.page": (64, 16)}
    assert recipe.kernel({"problem.page": 16}) == original.kernel({"problem.page": 16})


def test_other_targets_run_as_ever(exported: Path) -> None:
    problem = make_decode_problem([3, 200], page=16)
    plan = tle_attn.plan(str(exported), batch=2, query_heads=8, kv_heads=1, page=16, target="cpu")
    out, _ = plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)
    compare(out, problem.reference()[0], rms=4e-3)


def test_serving_from_an_export_compiles_nothing(exported: Path) -> None:
    before = compile_count()
    library = FakeLibrary()
    for page in (64, 16):
        kernel = tle_attn.load(exported).kernel(page=page)
        executor = FakeExecutor(kernel, library)
        geometry = {"query_heads": 8, "kv_heads": 1, "device": "cpu", "target": "gluon", "executor": executor}
        serve(lambda batch: plan_decode(kernel, batch=batch, **geometry), page)
    assert compile_count() == before
    assert library.count("cuModuleLoadData") == 4, "each kernel is put on the device once"
    assert len(library.launches) == 2 * 4 * 3 * 2, "a planner and an attention kernel at each step"


def test_serving_needs_no_triton(exported: Path) -> None:
    code = f"""
import sys
sys.modules["triton"] = None  # an import of it fails
import tle_attn
from tests.exports.fake_cuda import FakeExecutor, FakeLibrary
from tests.exports.serving import serve
from tle_attn.runtime.decode import plan_decode

kernel = tle_attn.load({str(exported)!r}).kernel()
executor = FakeExecutor(kernel, FakeLibrary())
serve(lambda batch: plan_decode(kernel, batch=batch, query_heads=8, kv_heads=1, device="cpu", target="gluon", executor=executor), 64)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_after_warm_up_a_compiled_plan_compiles_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an export: one compilation for each kernel at the first plan, whatever batch, lengths and table width come later."""
    from tle_attn.build.compile import CompiledKernel
    from tle_attn.runtime import executors

    launches = []
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(executors, "require_hopper", lambda *_: None)
    monkeypatch.setattr(executors.GluonExecutor, "resident_ctas", lambda *_: 264)
    monkeypatch.setattr(executors.GluonExecutor, "l2_bytes", lambda *_: 60 << 20)
    monkeypatch.setattr(CompiledKernel, "load", lambda _: None)
    monkeypatch.setattr(CompiledKernel, "launch", lambda kernel, grid, values: launches.append(kernel.name))
    kernel = tle_attn.load(RECIPE).kernel()

    def plan_of(batch: int) -> Any:
        return plan_decode(kernel, batch=batch, query_heads=8, kv_heads=1, device="cpu", target="gluon")

    plan_of(1)
    before = compile_count()
    serve(plan_of, 64)
    assert compile_count() == before and len(launches) == 4 * 3 * 2


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"format": 2}, "format 2; this version of tle_attn reads format 1"),
        ({"tle_attn": "0.0.1"}, "exported by tle_attn 0.0.1, but this is"),
        ({"architecture": "sm_100a"}, "code for sm_100a; kernels of tle_attn run on sm_90a"),
        ({"modules": 7}, "is no manifest"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(changed: Path, values: dict[str, Any], told: str) -> None:
    edit(changed, **values)
    with pytest.raises(ExportError, match=told):
        tle_attn.load(changed)


def test_a_folder_that_is_no_export(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is no export"):
        tle_attn.load(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(ExportError, match="is no JSON"):
        tle_attn.load(tmp_path)


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:-1] + b"x")], ids=["missing", "changed"])
def test_damaged_machine_code_is_not_loaded(changed: Path, damage: Any) -> None:
    damage(next(changed.glob("*.decode.cubin")))
    library = FakeLibrary()
    with pytest.raises(ExportError, match="incomplete|is not the file that was exported"):
        for page in (64, 16):
            FakeExecutor(tle_attn.load(changed).kernel(page=page), library)


def test_what_was_not_exported_is_named(exported: Path) -> None:
    recipe = tle_attn.load(exported)
    with pytest.raises(ExportError, match=r"no kernel was exported for ring.stages = 2, the nearest it holds has 3\. Nothing is compiled"):
        recipe.exported.module_of(recipe.set({"ring.stages": 2}).kernel())
    with pytest.raises(ExportError, match="problem.group = 4, the nearest it holds has 8"):
        recipe.exported.module_of(recipe.kernel(group=4))


def test_text_that_has_changed_since(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tle_attn.exports import manifest

    real = manifest.generate
    monkeypatch.setattr(manifest, "generate", lambda *a: type("Changed", (), {"text": real(*a).text + "# edited\n"}))
    kernel = tle_attn.load(exported).kernel()
    with pytest.raises(ExportError, match="means another text now than when it was exported"):
        kernel.exported.module_of(kernel)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(exported: Path) -> None:
    with pytest.raises(TargetUnavailable, match="holds code for sm_90a, needs an NVIDIA Hopper GPU"):
        tle_attn.load(exported).plan(batch=1, query_heads=8, kv_heads=1)


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ExportError, match="is there already and is no export"):
        export(RECIPE, tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["mine.txt"]


def test_exports_of_other_recipes_are_left_alone(exported: Path) -> None:
    before = (exported / "manifest.json").read_bytes()
    with pytest.raises(ExportError, match="holds the export of hy3/decode_bf16.*: give a folder of its own to variants/decode_bf16_sink"):
        export("variants/decode_bf16_sink", exported)
    assert (exported / "manifest.json").read_bytes() == before


def test_an_export_replaces_an_export(changed: Path) -> None:
    before = {f.name for f in changed.iterdir()}
    (changed / "notes.txt").write_text("mine")
    export(RECIPE, changed, axes={"problem.query_tokens": [1], "problem.page": [64]})
    after = {f.name for f in changed.iterdir()}
    assert after - before == {"notes.txt"} and len(after) == 5  # text, two kernels, the manifest
    assert tle_attn.load(changed).axes["problem.page"] == (64,)


def test_tuned_options_are_part_of_an_export(tmp_path: Path) -> None:
    from tle_attn.recipe.tuned import Tuned, write_tuned
    from tle_attn.spec.flat import spec_digest

    (tmp_path / "mine.toml").write_text(f'extends = "{RECIPE}"\n[axes]\n"problem.query_tokens" = [1]\n"problem.page" = [64]\n')
    recipe = tle_attn.load(tmp_path / "mine.toml")
    values = {"point": {}, "us": {}, "us_before": {}, "gpu": "NVIDIA H200", "date": "", "versions": {"tle_attn": tle_attn.__version__}}
    write_tuned(recipe, [Tuned(spec=spec_digest(recipe.kernel()), options={"ring.stages": 2}, **values)])
    export(tle_attn.load(tmp_path / "mine.toml", tuned="NVIDIA H200"), tmp_path / "out")
    kernel = tle_attn.load(tmp_path / "out").kernel()
    assert kernel.mainloop.ring.stages == 2 and kernel.exported.module_of(kernel).spec["ring.stages"] == "2"
    with pytest.raises(SpecError, match="is an export"):
        tle_attn.load(tmp_path / "out", tuned=True)


def test_a_point_that_is_no_kernel_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="problem.page"):
        export(RECIPE, tmp_path / "new", axes={"problem.page": [64, 48]})
    assert not (tmp_path / "new").exists()


def test_a_compiler_that_passes_arguments_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_kernel(tle_attn.load(RECIPE).set({"schedule.page_ids": False}).kernel(), "plan_tasks")
    assert [p.kind for p in parameters_of(compiled)] == ["pointer", "pointer", "i32", "i32", "i32", "i32", "i32"]
    ptx = compiled.asm["ptx"].replace(".param .u32 plan_tasks_param_2", ".param .u64 plan_tasks_param_2")
    monkeypatch.setattr(type(compiled), "asm", {"ptx": ptx})
    with pytest.raises(BuildError, match="passes arguments in another way"):
        parameters_of(compiled)
