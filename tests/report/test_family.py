"""The family run: rows, modules on disk, the report, and that one bad kernel is told without losing the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

import tle_attn
from tle_attn.build import Facts
from tle_attn.errors import SpecError
from tle_attn.report import Workload
from tle_attn.report.family import Row, build_family, build_one, family_table, point_label, write_report

WORKLOAD = Workload.named("uniform_512")
POINT = {"problem.query_tokens": 2, "problem.page": 32}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Row, Path]:
    pytest.importorskip("triton")
    out = tmp_path_factory.mktemp("family")
    return build_one("hy3/decode_bf16_static", POINT, out, 3, WORKLOAD), out


def test_row_of_a_kernel(made: tuple[Row, Path]) -> None:
    row, _ = made
    assert row.ok, row.failures
    assert row.label == "hy3/decode_bf16_static query_tokens=2 page=32"
    assert isinstance(row.facts["decode"], Facts) and [v.target for v in row.verified] == ["cpu", "tle-emulated"]
    assert row.protocol is not None and row.protocol.ok
    assert row.gpu_us is None and row.floor_us > 0


def test_modules_on_disk_are_the_generated_ones(made: tuple[Row, Path]) -> None:
    row, _ = made
    kernel = tle_attn.load(row.recipe).kernel(POINT)
    assert [m.read_text() for m in row.modules] == [tle_attn.generate(kernel, t).text for t in ("gluon", "tle", "cpu")]


def test_table_and_report(made: tuple[Row, Path]) -> None:
    row, out = made
    report = write_report([row], out).read_text()
    assert "1 of 1 kernels are right" in report and row.label in report and "HGMMA" in report
    for module in row.modules:
        assert f"({module.relative_to(out)})" in report


def test_a_wrong_kernel_is_named_with_the_reason(made: tuple[Row, Path]) -> None:
    row, _ = made
    wrong = evolve(row, verified=(evolve(row.verified[0], error=0.3, failure="row 7 is wrong"), row.verified[1]))
    shown = family_table([row, wrong])
    assert shown.title == "1 of 2 kernels are right"
    assert shown.rows[1][1] == "3.0e-01 WRONG" and shown.rows[1][-1] == "FAILED" and shown.rows[0][-1] == "ok"
    assert "row 7 is wrong" in shown.note


def test_a_fault_of_the_protocol_alone_fails_a_kernel(made: tuple[Row, Path]) -> None:
    row, _ = made
    wrong = evolve(row, protocol=evolve(row.protocol, failure="Deadlock: nobody arrives"))
    assert not wrong.ok and "nobody arrives" in family_table([wrong]).note and "FAULT" in family_table([wrong]).rows[0]


def test_a_kernel_that_cannot_be_made_is_a_row_too(tmp_path: Path) -> None:
    row = build_one("hy3/decode_bf16", {"problem.page": 48}, tmp_path, 0, WORKLOAD)
    assert not row.ok and "48" in row.failures[0]
    assert family_table([row]).rows[0][-1] == "FAILED"


def test_unknown_family(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="hy3, .*variants"):
        build_family("hy4", tmp_path, workload=WORKLOAD)


def test_points_in_words() -> None:
    assert point_label(POINT) == "query_tokens=2 page=32" and point_label({}) == ""


def test_only_generated_modules_of_an_earlier_run_are_removed(tmp_path):
    from tle_attn.codegen import generate
    from tle_attn.report.family import _remove_generated

    kernel = tle_attn.load("hy3/decode_bf16").kernel()
    (tmp_path / "point").mkdir()
    (tmp_path / "point" / "old.py").write_text(generate(kernel, "cpu").text)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "mine.py").write_text("mine = 1\n")
    _remove_generated(tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["mine.py", "notes.txt"]
