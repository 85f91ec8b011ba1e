"""Prefill times beside the recorded times of the CUDA reference.  A ratio is its time over ours: above 1 is faster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.compare import BASELINE, Key, Times, geometric_mean
from benchmarks.records import read

Baseline = dict[Key, Times]

#: operators of the reference that a case stands for, by group: its block-sparse operator without a mask, and its dense one, are the same computation
OPERATORS = {"fp8": ("blocksparse", "dense"), "bf16": ("kvcache",), "contiguous": ("contiguous",)}


def read_baseline(path: Path = BASELINE) -> Baseline:
    """Prefill times by (operator, element type, quant type, masked, queries, keys, layout, heads)."""
    return {
        (r["op"], r["dtype"], r["quant"], bool(r["masked"]), r["q"], r["kv"], r["layout"], r["hq"], r["hkv"]): Times(r["us"], r["us_cold"]) for r in read(path)["prefill"]
    }


def of_row(row: dict[str, Any], operator: str, baseline: Baseline) -> Times | None:
    """The reference's time for a row, by one of its operators."""
    if operator not in OPERATORS.get(row["group"], ()):
        return None
    layout = row["layout"] if row["paged"] else "-"
    return baseline.get((operator, row["dtype"], row["quant"], row["masked"], row["q"], row["kv"], layout, row["hq"], row["hkv"]))


def line(row: dict[str, Any], baseline: Baseline) -> str:
    """One row for the console."""
    kind = row["dtype"] if row["quant"] is None else f"{row['dtype']} q{row['quant']}"
    head = f"{row['kernel']:26s} {row['group']:10s} {row['case']:14s} {kind:6s} {row['layout'] if row['paged'] else 'rows'}"
    if row["us"] is None:
        return f"{head}  not timed"
    parts = [f"{row['us']:.1f}/{row['us_cold']:.1f} us", f"{row['tflops']:.0f} TFLOP/s"]
    for operator in OPERATORS.get(row["group"], ()):
        base = of_row(row, operator, baseline)
        if base:
            parts.append(f"{operator} {base.us:.1f}/{base.us_cold:.1f} = x{base.us / row['us']:.2f}/{base.us_cold / row['us_cold']:.2f}")
    if row["cudnn_us"]:
        parts.append(f"cuDNN {row['cudnn_us']:.1f} = x{row['cudnn_us'] / row['us']:.2f}")
    if row["masked"]:
        parts.append(f"skip {row['skip']:.3f}")
    if row["over_dense"]:
        parts.append(f"{row['over_dense']:.3f} of its tiles' dense time, {row['over_dense_sustained']:.3f} under lasting load")
    if row["us_plan"]:
        parts.append(f"plan {row['us_plan']:.1f}")
    return f"{head}  " + "  ".join(parts) + f"  err {row['rel_rms']:.1e}"


def summaries(rows: Iterable[dict[str, Any]], baseline: Baseline) -> list[str]:
    """Geometric means of ratios, warm and cold: by kernel, and of the best kernel of every case where several were measured."""
    timed = [r for r in rows if r["us"] is not None]
    best: dict[Key, dict[str, Any]] = {}
    for row in timed:
        key = tuple(row[k] for k in ("group", "case", "dtype", "quant", "masked", "paged", "layout"))
        if key not in best or row["us"] < best[key]["us"]:
            best[key] = row
    chosen = list(best.values())
    lines = ["geometric means of (reference time / our time), the fastest kernel of every case:"]
    fp8 = [r for r in chosen if r["group"] == "fp8"]
    lines.append(_mean("fp8, block-sparse operator, all", fp8, "blocksparse", baseline))
    for q, kv in dict.fromkeys((r["q"], r["kv"]) for r in fp8):
        for quant in (1, 0):
            for masked in (False, True):
                same = [r for r in fp8 if (r["q"], r["kv"], r["quant"], r["masked"]) == (q, kv, quant, masked)]
                lines.append(_mean(f"  {q}/{kv} quant {quant} {'masked' if masked else 'dense'}", same, "blocksparse", baseline))
    dense = [r for r in fp8 if not r["masked"]]
    for q, kv in dict.fromkeys((r["q"], r["kv"]) for r in dense):
        lines.append(_mean(f"fp8, dense operator, {q}/{kv}", [r for r in dense if (r["q"], r["kv"]) == (q, kv)], "dense", baseline))
    for group, operator in (("bf16", "kvcache"), ("contiguous", "contiguous")):
        same = [r for r in chosen if r["group"] == group]
        lines.append(_mean(f"bf16, {operator} operator, all", same, operator, baseline))
        lines += [_mean(f"  {r['q']}/{r['kv']} {r['layout']}", [r], operator, baseline) for r in same]
    return [text for text in lines if text]


def _mean(label: str, rows: list[dict[str, Any]], operator: str, baseline: Baseline) -> str:
    """One mean in words; nothing where the baseline has none of the rows."""
    pairs = [(row, base) for row in rows if (base := of_row(row, operator, baseline))]
    if not pairs:
        return ""
    warm, cold = (geometric_mean(getattr(base, name) / row[name] for row, base in pairs) for name in ("us", "us_cold"))
    worst = min(base.us / row["us"] for row, base in pairs)
    return f"{label:44s} x{warm:.3f} cold x{cold:.3f}  worst x{worst:.2f}  ({len(pairs)} cases)"
