"""The decode benchmark's logic on the CPU: a plan that computes the oracle stands in for the kernels, a clock that counts for the timer."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks import compare, decode, floor
from benchmarks.variants import Variant
from tle_attn.testing import make_decode_problem

CASES = {"short": (1, 65, 200), "other": (64, 3)}


class FakeTimer:
    """Times 10, 11, 12, ... microseconds in the order of the calls."""

    def __init__(self, samples: int = 40) -> None:
        self.next = 10.0

    def us(self, graph: object) -> float:
        self.next += 1.0
        return self.next

    us_cold = us_back_to_back = us

    def null_graph_us(self) -> float:
        return 2.9


class FakePlan:
    """Writes the oracle's result, spoiled by `spoil(calls so far, out)`."""

    def __init__(self, kernel, spoil) -> None:
        self.kernel, self.spoil, self.calls = kernel, spoil, 0

    def schedule(self, kv_lens: torch.Tensor) -> None:
        pass

    def run(self, q, k_cache, v_cache, block_ids, kv_lens, *, out, scheduled=False, **scales) -> None:
        query_tokens = self.kernel.problem.query_tokens
        reference, _ = decode.tle_attn.oracle.attention(q, k_cache, v_cache, block_ids, kv_lens, query_tokens=query_tokens, **scales)
        out.copy_(reference)
        self.calls += 1
        self.spoil(self.calls, out)


def right(calls: int, out: torch.Tensor) -> None:
    pass


def unwritten_row(calls: int, out: torch.Tensor) -> None:
    out[1] = float("nan")


def moves(calls: int, out: torch.Tensor) -> None:
    if calls > 1:
        out[0] += 1.0


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """main() with everything that needs a GPU or a compiler replaced; call with arguments and a way to spoil results."""
    monkeypatch.setattr(decode, "has_hopper", lambda: True)
    monkeypatch.setattr(decode, "Timer", FakeTimer)
    monkeypatch.setattr(decode, "capture", lambda call: SimpleNamespace(replay=call))
    monkeypatch.setattr(decode, "compile_all", lambda kernels, jobs: {key: {"decode": {"registers": 128}} for key in kernels})
    monkeypatch.setattr(decode, "WORKLOADS", CASES)
    monkeypatch.setattr(floor, "compiled", lambda *shape: None)
    monkeypatch.setattr(floor, "measure", lambda problem, timer, label: floor.Floor(5.0, 8.0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(
        decode.workloads, "decode_problem", lambda case, device, quant, **shape: make_decode_problem(CASES[case], quant=quant, dtype="bf16" if quant is None else "fp8", **shape)
    )

    def run(*arguments: str, spoil=right):
        monkeypatch.setattr(decode.tle_attn, "plan", lambda kernel, **geometry: FakePlan(kernel, spoil), raising=False)
        out = tmp_path / "record.json"
        status = decode.main([*arguments, "--out", str(out)])
        return status, json.loads(out.read_text())

    return run


def test_rows(bench):
    status, record = bench("--mtp", "1", "3", "--layouts", "NHD", "HND", "--variant", "a", "--variant", "b:ring.stages=2")
    assert status == 0
    rows = record["rows"]
    assert [(r["case"], r["layout"], r["mtp"], r["kernel"]) for r in rows] == [
        (case, layout, mtp, kernel) for case in CASES for layout in ("NHD", "HND") for mtp in (1, 3) for kernel in ("a", "b")
    ]
    first = rows[0]
    assert [first[k] for k in ("us", "us_cold", "us_b2b", "us_plan", "us_with_plan")] == [11.0, 12.0, 13.0, 14.0, 15.0]
    assert (first["floor_us"], first["floor_us_cold"]) == (5.0, 8.0)
    assert 0 < first["rel_rms"] < 4e-3
    assert record["kernels"]["b"]["options"] == {"ring.stages": 2}


def test_fp8_beside_bf16(bench, capsys):
    """Each quant type has problems, baselines and a floor of its own."""
    recipes = {"a": "hy3/decode_bf16", "b": "hy3/decode_fp8", "c": "hy3/decode_fp8_per_token"}
    status, record = bench("--cases", "short", *(word for name, recipe in recipes.items() for word in ("--variant", f"{name}:recipe={recipe}")))
    assert status == 0
    assert [(r["kernel"], r["dtype"], r["quant"]) for r in record["rows"]] == [("a", "bf16", None), ("b", "fp8", 1), ("c", "fp8", 0)]
    console = capsys.readouterr().out
    assert all(f"read floor {pages} " in console for pages in ("bf16", "fp8 quant 1", "fp8 quant 0"))


@pytest.mark.parametrize("spoil, message", [(unwritten_row, "1024 of 3072 elements not finite"), (moves, "a replay gave another result")])
def test_a_wrong_result_is_not_timed(bench, capsys, spoil, message):
    status, record = bench("--cases", "short", spoil=spoil)
    assert status == 1
    assert record["rows"][0]["us"] is None
    assert message in capsys.readouterr().out


def test_geometric_means_come_last(bench, capsys, monkeypatch):
    times = {("bf16", None, case, 1, "NHD", 8, 1): compare.Times(us, 2 * us) for case, us in (("short", 44.0), ("other", 16.0))}
    monkeypatch.setattr(compare, "read_baseline", lambda path: times)
    bench()
    last = capsys.readouterr().out.splitlines()[-1]
    assert "baseline/us 2.000" in last and "(2 of 2 cases)" in last  # 44 / 11 and 16 / 16


def test_dry_run_needs_no_gpu(bench, monkeypatch):
    monkeypatch.setattr(decode, "has_hopper", lambda: False)
    monkeypatch.setattr(decode, "Timer", None)
    status, record = bench("--dry", "--cases", "other")
    assert status == 0
    assert record["rows"][0]["us"] is None


def test_a_variant_that_cannot_be_composed_or_compiled_is_left_out(bench, capsys, monkeypatch):
    monkeypatch.setattr(decode, "compile_all", lambda kernels, jobs: {key: RuntimeError("ptxas is ill") if key[0] == "ill" else {} for key in kernels})
    variants = ("ill", "good", "huge:ring.stages=9", "d64:recipe=variants/decode_bf16_d64")
    status, record = bench("--cases", "short", *(word for variant in variants for word in ("--variant", variant)))
    assert status == 1
    assert [row["kernel"] for row in record["rows"]] == ["good"]
    console = capsys.readouterr().out
    assert "FAILED ill mtp 1: ptxas is ill" in console and "FAILED huge mtp 1" in console and "FAILED d64 mtp 1: head_dim 64" in console


def test_options():
    options = decode.arguments(["--recipe", "r", "--set", "ring.stages=4", "--variant", "x:recipe=other,ring.stages=5", "--variant", "y"])
    assert options.variants == [Variant("x", "other", (("ring.stages", 5),)), Variant("y", "r", (("ring.stages", 4),))]
    assert options.cases == list(decode.WORKLOADS)


@pytest.mark.parametrize("wrong", [["--samples", "29"], ["--cases", "unknown"], ["--variant", ":a=b"], ["--set", "ring.stages"]])
def test_wrong_options(wrong):
    with pytest.raises(SystemExit) as stop:
        decode.arguments(wrong)
    assert stop.value.code == 2
