"""The command line: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tle_attn
from tle_attn.cli import OK, REFUSED, UNAVAILABLE, WRONG, main


def test_list_names_every_recipe_with_its_axes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == OK
    out = capsys.readouterr().out
    for name in tle_attn.list_recipes():
        assert name in out
    assert "problem.page = 64, 16, 32, 128" in out


def test_list_of_blocks_names_every_block_and_its_options(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    assert main(["list", "--blocks"]) == OK
    told = capsys.readouterr().out
    assert all(name in told for name in ("split_merge", "store_tma", "exclusive_exp = (depends)", "window = (to be given)", "poll_above = (depends)", "min_tokens = 512"))
    assert "testing" not in told and "expect_scale" not in told


@pytest.mark.parametrize("command", ["list", "explain", "generate", "verify", "compile", "export", "bench", "tune", "diff", "new", "hy3"])
def test_every_command_has_a_help_text(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == OK
    assert "Usage: tle-attn" in capsys.readouterr().out


def test_help_imports_no_compiler() -> None:
    """`--help` stays quick because nothing heavy is imported for it."""
    code = (
        "import sys; from tle_attn.cli import main; main(['--help'])\n"
        "heavy = {'torch', 'triton', 'numpy', 'cattrs'} & set(sys.modules)\nassert not heavy, heavy"
    )
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert time.perf_counter() - start < 5.0  # 0.3 s on an idle machine


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == OK
    assert capsys.readouterr().out.strip() == f"tle-attn {tle_attn.__version__}"


def test_explain_shows_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "variants/decode_bf16_window", "--set", "ring.stages=2"]) == OK
    out = capsys.readouterr().out
    parts = ("Blocks", "Ports", "Shared memory", "Barriers", "Barrier protocol", "no fault", "Roles", "Kernel decode", "Time floor", "Differences against hy3/decode_bf16")
    assert [part for part in (*parts, "bf16[2, 64, 128]") if part not in out] == []


def test_explain_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "hy3/decode_bf16", "--markdown", "--no-protocol"]) == OK
    out = capsys.readouterr().out
    assert "| k_ring | bf16[3, 64, 128] |" in out and "## Barrier protocol" not in out


def test_generate_writes_one_module_per_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hy3/decode_bf16", "--target", "cpu", "--out", str(tmp_path / "new"), "--set", "problem.page=16", "--all-points"]) == OK
    files = sorted((tmp_path / "new").iterdir())
    assert sorted(map(Path, capsys.readouterr().out.split())) == files
    assert len(files) == 3  # query_tokens 1, 2, 3
    recipe = tle_attn.load("hy3/decode_bf16").set({"problem.page": 16})
    assert {f.read_text() for f in files} == {tle_attn.generate(recipe.kernel(p), "cpu").text for p in recipe.points()}


def test_verify_says_ok_and_shows_the_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "variants/decode_bf16_d64", "--seed", "5"]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "ok", "ok"]
    assert "cpu:" in lines[0] and "tle-emulated:" in lines[1] and "4e-03" in lines[0] and "no fault" in lines[2]


def test_verify_leaves_out_an_emulation_that_cannot_express_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it was asked for by name."""
    recipe = ["verify", "variants/decode_bf16_cluster", "--set", "schedule.splits=2", "--set", "reduce.size=2", "--set", "problem.group=1"]
    assert main(recipe) == OK
    told = capsys.readouterr().out
    assert "cpu: relative RMS error" in told and "-     " in told and "target tle-emulated cannot run" in told and "protocol: " in told
    assert main([*recipe, "--target", "tle-emulated"]) == UNAVAILABLE


def test_verify_of_a_wrong_kernel_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel that hides each query's own key must not pass."""
    from tle_attn.codegen import Generated
    from tle_attn.runtime import executors

    def broken(kernel: tle_attn.Kernel, target: str) -> Generated:
        made = tle_attn.generate(kernel, target)
        text = made.text.replace("where_le(key, query, s,", "where_le(key + 1, query, s,")
        assert text != made.text
        return Generated(made.name, made.target, text, made.entries, made.line_map)

    monkeypatch.setattr(executors, "generate", broken)
    assert main(["verify", "hy3/decode_bf16", "--target", "cpu"]) == WRONG
    out = capsys.readouterr().out
    assert out.startswith("WRONG") and "kv_len" in out and "relative RMS" in out


def test_compile_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    assert main(["compile", "hy3/decode_bf16_static", "--json"]) == OK
    (row,) = json.loads(capsys.readouterr().out)
    assert row["entry"] == "decode" and row["kernel"].startswith("hy3/decode_bf16_static")
    assert 0 < row["registers"] <= 255 and row["opcodes"]["HGMMA"] > 0 and row["shared_bytes"] > 96 * 1024


def test_export_is_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    out = tmp_path / "static"
    assert main(["export", "hy3/decode_bf16_static", "--out", str(out), "--axis", "problem.query_tokens=[2]", "--set", "problem.page=32", "--jobs", "1"]) == OK
    captured = capsys.readouterr()
    assert captured.out.strip() == str(out / "manifest.json") and "[  1/1] hy3/decode_bf16_static decode" in captured.err
    assert main(["explain", str(out), "--no-protocol"]) == OK
    assert "problem.query_tokens 2" in " ".join(capsys.readouterr().out.split())


def test_tune_writes_what_tuned_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a made-up GPU and clock: the fastest rings are short ones."""
    from types import SimpleNamespace

    from tle_attn import verify
    from tle_attn.recipe import tuned
    from tle_attn.report import bench, timing, tune

    verified = []
    monkeypatch.setattr(bench, "require_gpu", lambda command: None)
    monkeypatch.setattr(timing, "Timer", object)
    monkeypatch.setattr(bench, "time_kernel", lambda kernel, workload, timer: 10.0 + kernel.mainloop.ring.stages)
    monkeypatch.setattr(tune, "compile_in_processes", lambda kernels, jobs: None)
    monkeypatch.setattr(tuned, "this_gpu", lambda: "NVIDIA H200")
    monkeypatch.setattr(verify, "verify_kernel", lambda kernel, target: verified.append((kernel.mainloop.ring.stages, target)) or SimpleNamespace(ok=True))
    monkeypatch.chdir(tmp_path)
    assert main(["new", "mine", "--from", "hy3/decode_bf16"]) == OK
    assert main(["tune", "mine.toml", "--only", "ring.stages", "--workload", "uniform_512"]) == OK
    captured = capsys.readouterr()
    assert "tuned/nvidia_h200/mine.toml" in captured.out and "ring.stages = 3: uniform_512 13.00 us" in captured.err
    assert verified == [(2, "gluon")], "the kernel that is recommended was verified"
    for gpu in ("this", "NVIDIA H200"):
        assert main(["explain", "mine.toml", "--no-protocol", "--tuned", gpu]) == OK
        captured = capsys.readouterr()
        assert "ring mbarrier stages = 2" in " ".join(captured.out.split()) and captured.err == ""
    assert main(["explain", "mine.toml", "--no-protocol", "--tuned", "NVIDIA H20"]) == OK
    captured = capsys.readouterr()
    assert "ring mbarrier stages = 3" in " ".join(captured.out.split())
    assert captured.err.startswith("warning: mine: no tuned options are used: ") and "is for another GPU" in captured.err


def test_diff_shows_spec_and_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "hy3/decode_bf16", "variants/decode_bf16_soft_cap"]) == OK
    out = capsys.readouterr().out
    assert "score[0].cap" in out and "+def soft_cap_scores(" in out


def test_diff_of_a_recipe_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "hy3/decode_bf16", "hy3/decode_bf16"]) == OK
    assert capsys.readouterr().out.count("same") == 2


def test_new_recipe_is_valid_and_its_comments_are_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mine", "--from", "variants/decode_bf16_window", "--out", str(tmp_path)]) == OK
    file = tmp_path / "mine.toml"
    assert capsys.readouterr().out.strip() == str(file)
    parent = tle_attn.load("variants/decode_bf16_window")
    assert tle_attn.load(file).kernel().problem == parent.kernel().problem
    assert tle_attn.load(file).kernel().mainloop == parent.kernel().mainloop
    # every option that it lists can be switched on as it stands
    lines = file.read_text().splitlines()
    first = lines.index("# [problem]")
    file.write_text("\n".join(lines[:first] + [line.removeprefix("# ") for line in lines[first:]]))
    assert tle_attn.load(file).kernel().mainloop == parent.kernel().mainloop


def test_new_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text("kept")
    assert main(["new", "mine", "--from", "hy3/decode_bf16", "--out", str(tmp_path)]) == REFUSED
    assert (tmp_path / "mine.toml").read_text() == "kept"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["explain", "hy3/decode_bf17"], ["hy3/decode_bf17", "hy3/decode_bf16_static"]),
        (["explain", "hy3/decode_bf16", "--set", "ring.stages=99"], ["decode_bf16.toml with ring.stages = 99", "1 to 16"]),
        (["explain", "hy3/decode_bf16", "--set", "problem.dtype=f16"], ['dtype cannot be "f16"', "bf16, fp8"]),
        (["bench", "nope"], ["nope", "hy3/decode_bf16_static"]),
        (["bench", "hy3/decode_bf16", "--workload", "nope"], ["nope", "uniform_4096"]),
        (["verify", "hy3/decode_bf16", "--target", "nope"], ["nope", "gluon, tle, cpu, tle-emulated"]),
        (["explain", "hy3/decode_bf16", "--set", "ring.stage=2"], ["ring.stage", "did you mean 'stages'"]),
        (["explain", "hy3/decode_bf16", "--set", "stages"], ["stages", "KEY=VALUE"]),
        (["explain", "hy3/decode_bf16", "--workload", "none"], ["none", "uniform_4096"]),
        (["verify", "hy3/decode_bf16", "--set", "problem.page=2848"], ["problem.page", "2848", "16, 32, 64, 128"]),
        (["verify", "hy3/decode_bf16", "--set", "epilogue.block=store_tma"], ["epilogue", "mainloop/decode cannot use epilogue/store_tma", "epilogue/store, epilogue/store_aligned"]),
        (["verify", "hy3/decode_fp8", "--set", "epilogue.block=store_rows"], ["epilogue", "mainloop/decode cannot use epilogue/store_rows"]),
        (["explain", "hy3/decode_bf16", "--set", "problem.query_tokens=9"], ["problem.query_tokens: 9 query tokens x 8 heads"]),
        (["explain", "hy3/decode_bf16_static", "--set", "schedule.block=task_map"], [" mainloop.batch_invariant: task_map cuts"]),
        (["explain", "variants/prefill_bf16_d192_v128", "--set", "epilogue.block=store_tma"], ["lower ring.stages or mainloop.consumers"]),
        (["generate", "hy3/decode_bf16", "--target", "ptx", "--out", "x"], ["ptx", "gluon"]),
        (["export", "hy3/decode_bf16", "--out", "x", "--axis", "problem.page=64"], ["problem.page", "names no values", "KEY=[VALUES]"]),
        (["export", "hy3/decode_bf16", "--out", ".."], ["is no export"]),
        (["explain", "."], ["is no export"]),
        (["new", "no name", "--from", "hy3/decode_bf16"], ["no name"]),
    ],
)
def test_refused_input_is_told_in_words(
    arguments: list[str], told: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == REFUSED
    error = capsys.readouterr().err
    assert "Traceback" not in error and len(error.splitlines()) <= 10
    for words in told:
        assert words in error


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_what_needs_a_gpu_says_so(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tle_attn.build import has_hopper

    if has_hopper():
        pytest.skip("a Hopper GPU is here")
    assert main([command, "hy3/decode_bf16"]) == UNAVAILABLE
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("target", ["gluon", "tle"])
def test_a_target_that_cannot_run_is_one_line_and_nothing_falls_back(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tle_attn.build import has_hopper

    if has_hopper():
        pytest.skip("a Hopper GPU is here")
    assert main(["verify", "hy3/decode_bf16", "--target", target]) == UNAVAILABLE
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["generate", "hy3/decode_bf16", "--target", "cpu", "--out", str(tmp_path / "file")]) == REFUSED
    assert capsys.readouterr().err.strip() == f"{tmp_path / 'file'}: File exists"


def test_an_unknown_target_leaves_no_folder(tmp_path: Path) -> None:
    assert main(["generate", "hy3/decode_bf16", "--target", "nope", "--out", str(tmp_path / "out")]) == REFUSED
    assert not (tmp_path / "out").exists()
