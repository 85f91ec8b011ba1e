import math

from benchmarks.records import Record, command_line, read


def record() -> Record:
    row = {"case": "a", "us": 1.23456, "us_cold": 2.0, "rel_rms": 0.00123456}
    return Record("what", {"gpu": "G", "torch": "1"}, "python -m x", {"page": 64}, [row], date="2026-01-02")


def test_written_and_read(tmp_path):
    path = tmp_path / "new folder" / "record.json"
    record().save(path)
    assert read(path) == {
        "what": "what", "gpu": "G", "date": "2026-01-02", "versions": {"torch": "1"}, "command": "python -m x", "page": 64,
        "rows": [{"case": "a", "us": 1.23, "us_cold": 2.0, "rel_rms": 0.001235}],
    }  # fmt: skip


def test_one_row_a_line(tmp_path):
    many = record()
    many.rows *= 3
    many.save(tmp_path / "r.json")
    assert sum(line.startswith('{"case"') for line in (tmp_path / "r.json").read_text().splitlines()) == 3


def test_saving_again_replaces(tmp_path):
    path = tmp_path / "r.json"
    one = record()
    one.save(path)
    one.rows.append({"case": "b", "us": None})
    one.save(path)
    assert [r["case"] for r in read(path)["rows"]] == ["a", "b"]
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_what_is_no_number_is_null(tmp_path):
    path = tmp_path / "r.json"
    one = record()
    one.rows = [{"rel_rms": math.inf, "us": math.nan, "hq": 8}]
    one.save(path)
    assert read(path)["rows"] == [{"rel_rms": None, "us": None, "hq": 8}]


def test_no_rows(tmp_path):
    one = record()
    one.rows = []
    one.save(tmp_path / "r.json")
    assert read(tmp_path / "r.json")["rows"] == []


def test_command_line_keeps_names_of_outputs_only():
    words = ["--recipe", "r", "--set", "a b=1", "--out", "/some/folder/file.json"]
    assert command_line("benchmarks.decode", words) == "python -m benchmarks.decode --recipe r --set 'a b=1' --out file.json"
