import json
import math

import pytest

from benchmarks import compare


def row(case: str, us: float, **changes):
    base = {"kernel": "k", "case": case, "dtype": "bf16", "quant": None, "mtp": 1, "layout": "NHD", "hq": 8, "hkv": 1}
    return base | {"us": us, "us_cold": 2 * us, "floor_us": us / 2, "floor_us_cold": us} | changes


def test_baseline_has_the_best_of_its_settings(tmp_path):
    """Rows of one operator that differ in min_process_len: the best warm and the best cold time, each for itself."""
    path = tmp_path / "baseline.json"
    rows = [
        row("a", 10.0, us_cold=30.0, min_process_len=64),
        row("a", 12.0, us_cold=20.0, min_process_len=512),
        row("a", 5.0, mtp=2, min_process_len=64),
    ]
    path.write_text(json.dumps({"decode": rows}))
    baseline = compare.read_baseline(path)
    assert baseline[compare.key_of(row("a", 0.0))] == compare.Times(10.0, 20.0)
    assert len(baseline) == 2


def test_recorded_baseline_is_complete():
    """9 cases x 2 layouts x 3 numbers of query tokens, for bf16 and for both scalings of fp8."""
    baseline = compare.read_baseline()
    assert len(baseline) == 9 * 2 * 3 * 3
    assert baseline["bf16", None, "uniform_4096", 1, "NHD", 8, 1].us == 44.688


def test_geometric_mean():
    assert compare.geometric_mean([1.0, 4.0, 2.0]) == pytest.approx(2.0)
    assert math.isnan(compare.geometric_mean([]))


def test_summary():
    rows = [row("a", 10.0), row("b", 40.0), row("only ours", 1.0), row("failed", 1.0) | {"us": None}, row("a", 3.0, kernel="other")]
    baseline = {compare.key_of(r): compare.Times(r["us"] * factor, r["us_cold"] * factor * 2) for r, factor in ((rows[0], 2.0), (rows[1], 0.5))}
    ours, other = compare.summarize(rows, baseline)
    assert (ours.kernel, ours.cases, ours.compared) == ("k", 3, 2)
    assert ours.ratio == pytest.approx(1.0)  # 2 and 1/2
    assert ours.ratio_cold == pytest.approx(2.0)  # 4 and 1
    assert ours.over_floor == pytest.approx(2.0)
    assert ours.over_floor_cold == pytest.approx(2.0)
    assert other.ratio == pytest.approx(20 / 3)


def test_back_to_back():
    """Of the cases that both sides timed so."""
    rows = [row("a", 10.0, us_b2b=8.0), row("b", 10.0, us_b2b=5.0), row("c", 10.0)]
    baseline = {compare.key_of(r): compare.Times(1.0, 1.0, us_b2b) for r, us_b2b in zip(rows, (16.0, None, 3.0), strict=True)}
    (summary,) = compare.summarize(rows, baseline)
    assert summary.ratio_b2b == pytest.approx(2.0) and "back to back 2.000" in str(summary)


def test_without_a_baseline():
    (summary,) = compare.summarize([row("a", 10.0)], {})
    assert summary.compared == 0 and math.isnan(summary.ratio)


def test_other_settings_are_not_compared():
    """A time of another layout, number of query tokens or head count is no baseline."""
    ours = row("a", 10.0)
    for change in ({"layout": "HND"}, {"mtp": 2}, {"hkv": 2}, {"dtype": "fp8"}, {"quant": 1}):
        (summary,) = compare.summarize([ours], {compare.key_of(ours | change): compare.Times(1.0, 1.0)})
        assert summary.compared == 0


def test_command(tmp_path, capsys):
    record, baseline = tmp_path / "record.json", tmp_path / "baseline.json"
    record.write_text(json.dumps({"rows": [row("a", 10.0)]}))
    baseline.write_text(json.dumps({"decode": [row("a", 15.0)]}))
    compare.main([str(record), "--baseline", str(baseline)])
    assert "baseline/us 1.500 cold 1.500 (1 of 1 cases)" in capsys.readouterr().out
