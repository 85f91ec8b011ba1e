"""Compare a record, of decode or of prefill, with a baseline: `python -m benchmarks.compare RECORD [--baseline FILE]`.

A ratio is baseline time over our time: above 1 is faster.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import frozen

from benchmarks.records import read

#: The CUDA reference's operators, timed on an H200 with the method of `tle_attn.report.timing`.
BASELINE = Path(__file__).with_name("baselines") / "hpc_ops_h200.json"

Key = tuple[Any, ...]


@frozen
class Times:
    us: float
    us_cold: float
    us_b2b: float | None = None  #: back to back


def key_of(row: dict[str, Any]) -> Key:
    """What must be equal for two decode times to be comparable; `mtp` counts the query tokens of a request."""
    return tuple(row[name] for name in ("dtype", "quant", "case", "mtp", "layout", "hq", "hkv"))


def read_baseline(path: Path = BASELINE) -> dict[Key, Times]:
    """Decode times by key; where the baseline has several settings of one operator, the best of each time."""
    found: dict[Key, Times] = {}
    for row in read(path)["decode"]:
        new = Times(row["us"], row["us_cold"], row.get("us_b2b"))
        old = found.get(key_of(row), new)
        b2b = [t for t in (old.us_b2b, new.us_b2b) if t is not None]
        found[key_of(row)] = Times(min(old.us, new.us), min(old.us_cold, new.us_cold), min(b2b, default=None))
    return found


def geometric_mean(values: Iterable[float]) -> float:
    """NaN of nothing."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


@frozen
class Summary:
    """Geometric means over the cases of one kernel, number of query tokens and layout; NaN where nothing can be compared."""

    kernel: str
    mtp: int
    layout: str
    cases: int  #: measured
    compared: int  #: of them with a baseline
    ratio: float
    ratio_cold: float
    ratio_b2b: float
    over_floor: float
    over_floor_cold: float

    def __str__(self) -> str:
        b2b = "" if math.isnan(self.ratio_b2b) else f" back to back {self.ratio_b2b:.3f}"
        return (
            f"{self.kernel:40s} mtp {self.mtp} {self.layout}  baseline/us {self.ratio:.3f} cold {self.ratio_cold:.3f}{b2b} ({self.compared} of {self.cases} cases)"
            f"  us/floor {self.over_floor:.3f} cold {self.over_floor_cold:.3f}"
        )


def summarize(rows: Iterable[dict[str, Any]], baseline: dict[Key, Times]) -> list[Summary]:
    """One summary for each (kernel, mtp, layout), in the order of the rows.  Rows without a time (a failed case) count in no mean."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["us"] is not None:
            groups.setdefault((row["kernel"], row["mtp"], row["layout"]), []).append(row)
    return [_summary(*group, members, baseline) for group, members in groups.items()]


def _summary(kernel: str, mtp: int, layout: str, rows: list[dict[str, Any]], baseline: dict[Key, Times]) -> Summary:
    pairs = [(row, baseline[key_of(row)]) for row in rows if key_of(row) in baseline]
    with_floor = [row for row in rows if row.get("floor_us")]
    return Summary(
        kernel,
        mtp,
        layout,
        cases=len(rows),
        compared=len(pairs),
        ratio=geometric_mean(base.us / row["us"] for row, base in pairs),
        ratio_cold=geometric_mean(base.us_cold / row["us_cold"] for row, base in pairs),
        ratio_b2b=geometric_mean(base.us_b2b / row["us_b2b"] for row, base in pairs if base.us_b2b and row.get("us_b2b")),
        over_floor=geometric_mean(row["us"] / row["floor_us"] for row in with_floor),
        over_floor_cold=geometric_mean(row["us_cold"] / row["floor_us_cold"] for row in with_floor),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    options = parser.parse_args(argv)
    rows = read(options.record)["rows"]
    if rows and "group" in rows[0]:
        from benchmarks import prefill_compare

        baseline = prefill_compare.read_baseline(options.baseline)
        print("\n".join([*(prefill_compare.line(row, baseline) for row in rows), *prefill_compare.summaries(rows, baseline)]))
        return
    for summary in summarize(rows, read_baseline(options.baseline)):
        print(summary)


if __name__ == "__main__":
    main()
