"""The prefill benchmark's logic on the CPU: a plan that computes the oracle stands in for the kernels, a clock that counts for the timer."""

import json
from types import SimpleNamespace

import pytest
import torch
from attrs import evolve

from benchmarks import prefill, prefill_cases, prefill_compare, prefill_problems
from benchmarks.compare import Times
from benchmarks.prefill_cases import Case, dense_case, square

SMALL = {"pairs": square(150), "heads": (4, 1)}
CASES = [
    Case(group="square", name="8k", dtype="fp8", quant=1, **SMALL), Case(group="square", name="8k", **SMALL),
    Case(group="fp8", name="127", dtype="fp8", quant=1, reference=True, **SMALL), Case(group="fp8", name="127 masked", dtype="fp8", quant=1, density=0.25, reference=True, **SMALL),
    Case(group="bf16", name="127", reference=True, layout="HND", **SMALL), Case(group="contiguous", name="127", paged=False, reference=True, **SMALL),
    Case(group="ragged", name="two", pairs=((150, 150), (3, 3)), heads=(4, 1)), Case(group="mask", name="8k keep 50%", dtype="fp8", quant=1, density=0.5, **SMALL),
]  # fmt: skip


class FakeTimer:
    """Times 10, 11, 12, ... microseconds in the order of the calls."""

    def __init__(self, samples: int = 40) -> None:
        self.next = 10.0

    def us(self, graph: object) -> float:
        self.next += 1.0
        return self.next

    us_cold = us_sustained = us

    def null_graph_us(self) -> float:
        return 2.9


class FakePlan:
    """Writes the oracle's result, spoiled by `spoil(calls so far, out)`."""

    executor = "executor"

    def __init__(self, kernel, spoil) -> None:
        self.kernel, self.spoil, self.calls = kernel, spoil, 0

    def schedule(self, **lengths: torch.Tensor) -> None:
        pass

    def run(self, *, out, scheduled=False, **inputs) -> None:
        if inputs["block_ids"] is None:
            starts = inputs["cu_seqlens_q"]
            inputs |= {"k_cache": inputs["k_cache"][:, None], "v_cache": inputs["v_cache"][:, None], "block_ids": starts[:-1, None] + torch.arange(150, dtype=torch.int32)}
        out.copy_(prefill.tle_attn.oracle.attention(**inputs)[0])
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
    monkeypatch.setattr(prefill, "has_hopper", lambda: True)
    monkeypatch.setattr(prefill, "Timer", FakeTimer)
    monkeypatch.setattr(prefill, "capture", lambda call: SimpleNamespace(replay=call))
    monkeypatch.setattr(prefill, "compile_all", lambda kernels, jobs: {key: {"prefill": {"registers": 168}} for key in kernels})
    monkeypatch.setattr(prefill, "cudnn_us", lambda batch, length, heads, timer: 25.0)
    monkeypatch.setattr(prefill_cases, "all_cases", lambda: CASES)
    # the 4 x 3 units of 64 rows of one sequence fill such a device once, so one consumer is for them; the two sequences can be more units
    monkeypatch.setattr(prefill, "H200_MULTIPROCESSORS", 12)
    monkeypatch.setattr(prefill, "dense_case", lambda case: evolve(dense_case(case), pairs=square(150), heads=(4, 1)))
    monkeypatch.setattr(prefill_cases, "dense_case", lambda case: evolve(dense_case(case), pairs=square(150), heads=(4, 1)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    make = prefill_problems.make_problem
    monkeypatch.setattr(prefill_problems, "make_problem", lambda case: make(case, "cpu"))

    def run(*arguments: str, spoil=right):
        monkeypatch.setattr(prefill.tle_attn, "plan", lambda kernel, executor, **geometry: FakePlan(kernel, spoil), raising=False)
        out = tmp_path / "record.json"
        status = prefill.main([*arguments, "--out", str(out)])
        return status, json.loads(out.read_text())

    return run


def test_every_case_by_the_kernels_that_are_for_it(bench, capsys):
    status, record = bench()
    assert status == 0 and all(row["us"] and row["us_cold"] and row["rel_rms"] < 4e-2 for row in record["rows"])
    by_case = [(row["group"], row["case"], row["kernel"]) for row in record["rows"]]
    assert by_case == [
        ("square", "8k", "prefill_fp8 x1"), ("square", "8k", "prefill_bf16 x1"), ("fp8", "127", "prefill_fp8 x1"), ("fp8", "127 masked", "prefill_fp8_block_mask x1"),
        ("bf16", "127", "prefill_bf16 x1"), ("contiguous", "127", "prefill_bf16_contiguous x1"), ("ragged", "two", "prefill_bf16"), ("mask", "8k keep 50%", "prefill_fp8_block_mask x1"),
    ]  # fmt: skip
    rows = {row["case"]: row for row in record["rows"] if row["group"] != "square"}
    assert rows["two"]["us_plan"] and rows["two"]["batch"] == 2 and rows["127"]["us_plan"] is None
    assert rows["8k keep 50%"]["skip"] > 0 and rows["127 masked"]["masked"]
    dense = next(row for row in record["rows"] if row["kernel"] == "prefill_bf16 x1")
    ragged = rows["two"]
    assert ragged["over_dense"] == pytest.approx(ragged["us"] / (dense["us"] * ragged["tiles"] / dense["tiles"]), rel=1e-3)
    assert ragged["over_dense_sustained"] == pytest.approx(ragged["us_sustained"] / (dense["us_sustained"] * ragged["tiles"] / dense["tiles"]), rel=1e-3)
    assert rows["127"]["us_sustained"] is None
    assert dense["cudnn_us"] == 25.0 and rows["127 masked"]["cudnn_us"] is None
    assert set(record["kernels"]["prefill_fp8 x1"]["compiled"]) == {"group 4"}
    assert "us" in capsys.readouterr().out


def test_variants_and_selection(bench):
    status, record = bench(
        "--variant", "one:recipe=hy3/prefill_fp8", "--variant", "two:recipe=hy3/prefill_fp8,ring.stages=2", "--groups", "fp8", "--cases", "127 fp8", "--layouts", "NHD"
    )
    assert status == 0
    assert [(row["kernel"], row["case"]) for row in record["rows"]] == [("one", "127"), ("two", "127")]
    assert record["kernels"]["two"]["options"] == {"ring.stages": 2}


@pytest.mark.parametrize("spoil", [unwritten_row, moves])
def test_wrong_results_have_no_time(bench, spoil, capsys):
    status, record = bench("--groups", "bf16", spoil=spoil)
    assert status == 1 and all(row["us"] is None for row in record["rows"])
    assert "FAILED prefill_bf16 x1, bf16 127" in capsys.readouterr().out


def test_a_variant_that_cannot_be_composed_is_named(bench, capsys):
    status, record = bench("--recipe", "hy3/prefill_bf16", "--variant", "base:ring.stages=2", "--variant", "deep:ring.stages=60", "--groups", "bf16")
    assert status == 1 and {row["kernel"] for row in record["rows"]} == {"base"}
    assert "FAILED deep group 4" in capsys.readouterr().out


def test_dry_run_lists_what_would_be_measured(monkeypatch, capsys):
    monkeypatch.setattr(prefill, "compile_all", lambda kernels, jobs: {key: {} for key in kernels})
    assert prefill.main(["--dry", "--groups", "fp8", "--layouts", "NHD"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "fp8 512/32k masked fp8 quant 0 NHD: prefill_fp8_per_token_block_mask" in lines
    assert not [line for line in lines if line.endswith("no variant")]


def test_every_case_has_a_variant_of_the_library():
    kernels = [v.kernel(group=g) for v in prefill.library_variants([]) for g in (4, 8)]
    for case in prefill_cases.all_cases():
        assert sum(prefill.fits(kernel, case, policy=True) for kernel in kernels) == 1, case.label


class TestCompare:
    def row(self, **changes):
        base = {"kernel": "k", "group": "fp8", "case": "512/4k", "dtype": "fp8", "quant": 1, "masked": False, "paged": True, "layout": "NHD", "q": 512, "kv": 4096}
        times = {"hq": 32, "hkv": 4, "us": 40.0, "us_cold": 50.0, "tflops": 1.0, "cudnn_us": None, "skip": 0.0, "over_dense": None, "over_dense_sustained": None, "us_plan": None, "rel_rms": 1e-3}
        return {**base, **times, **changes}

    def test_both_operators_of_the_reference(self):
        baseline = prefill_compare.read_baseline()
        assert len(baseline) == 24 + 12 + 10 + 3
        assert prefill_compare.of_row(self.row(), "blocksparse", baseline) == Times(77.664, 79.744)
        assert prefill_compare.of_row(self.row(), "dense", baseline) == Times(72.224, 73.92)
        assert prefill_compare.of_row(self.row(masked=True), "dense", baseline) is None
        assert prefill_compare.of_row(self.row(group="contiguous", dtype="bf16", quant=None, paged=False, q=127, kv=127), "contiguous", baseline).us == 10.48
        assert "blocksparse 77.7/79.7 = x1.94/1.59" in prefill_compare.line(self.row(), baseline)

    def test_means_are_of_the_fastest_kernel_of_a_case(self):
        baseline = prefill_compare.read_baseline()
        lines = prefill_compare.summaries([self.row(), self.row(kernel="slow", us=400.0), self.row(kernel="failed", us=None)], baseline)
        assert lines[1].split()[4:] == ["x1.942", "cold", "x1.595", "worst", "x1.94", "(1", "cases)"]

    def test_a_record_is_compared_by_the_command(self, tmp_path, capsys):
        from benchmarks import compare

        path = tmp_path / "record.json"
        path.write_text(json.dumps({"rows": [self.row()]}))
        compare.main([str(path)])
        assert "x1.942" in capsys.readouterr().out
