"""The dialect's page in the docs, from the table: `python -m tle_attn.dialect.page` rewrites docs/dialect.md."""

from __future__ import annotations

from pathlib import Path

from .table import DTYPES, OPS

TITLES = {
    "program": "Programs and roles", "global": "Global memory", "tile": "Tiles in registers", "shared": "Shared memory", "barrier": "Barriers", "tma": "TMA",
    "wgmma": "wgmma", "cluster": "Clusters", "vote": "Warp votes",
}  # fmt: skip

HEAD = """# The dialect

The language that block text is written in: ordinary Python syntax, the operations below, and nothing else from outside. Names and meaning are TLE's wherever
TLE has the operation. Device text may use `range`, `while`, `if`, early `return`, `x if c else y`, tuples, arithmetic and comparisons, `x[:, None]`, `.to(DTYPE)`,
`.reshape`, `.permute`, `.slot(i)`, `.shape`, `.dtype`; what the JIT refuses or miscompiles is refused by a lint first (`tle_attn/codegen/lint.py`).

Element types: {dtypes}. Uses of a barrier are counted logically: tile i of a ring of S is use `i // S` of slot `i % S`; parities never appear in text.
Between roles only barriers order memory; inside a role the compiler orders what it sees, and microkernels in assembly order themselves.

The three targets: [targets](targets.md). Each operation is compared between GPU, emulation and float64 in `benchmarks/records/dialect_ops_h200.json`.
This page is generated from `tle_attn/dialect/table.py` (`python -m tle_attn.dialect.page`).
"""


def render() -> str:
    """The page's text."""
    parts = [HEAD.format(dtypes=", ".join(DTYPES))]
    for group, title in TITLES.items():
        parts.append(f"\n## {title}\n\n| operation | meaning | Gluon | TLE | emulation |\n|---|---|---|---|---|\n")
        for op in OPS:
            if op.group == group:
                cells = (f"`{op.signature}`", op.meaning, op.gluon, op.tle, op.cpu)
                parts.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n")
    return "".join(parts)


def main() -> None:
    """Rewrite docs/dialect.md of a source checkout."""
    (Path(__file__).resolve().parents[2] / "docs" / "dialect.md").write_text(render())


if __name__ == "__main__":
    main()
