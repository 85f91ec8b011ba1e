"""Facts of compiled kernels as a table: what the compiler made of the Gluon module, found without a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .table import Table

if TYPE_CHECKING:
    from ..build import Facts
    from ..spec import Kernel

#: instructions that say what kind of kernel it is: matrix products, TMA loads, barrier operations, exponentials
TELLING = ("HGMMA", "UTMALDG", "UTMASTG", "SYNCS.PHASECHK", "MUFU.EX2", "WARPSYNC", "BAR.SYNC")


def facts_of(kernel: Kernel) -> dict[str, Facts]:
    """{entry: facts} of every kernel of the module, compiled for sm_90a."""
    from ..codegen import generate
    from ..runtime.executors import compile_kernel

    return {entry.name: compile_kernel(kernel, entry.name).facts for entry in generate(kernel, "gluon").entries}


def facts_table(found: Iterable[tuple[str, str, Facts]], title: str = "Compiled for sm_90a") -> Table:
    """Rows (kernel, entry, facts)."""
    rows, notes = [], []
    for name, entry, f in found:
        telling = ", ".join(f"{f.opcodes[op]} {op}" for op in TELLING if op in f.opcodes)
        spills = f"{f.spill_stores} / {f.spill_loads}"
        rows.append((name, entry, str(f.registers), spills, f"{f.shared_bytes:,}", str(f.instructions), str(f.loop_instructions), telling))
        notes += [f"{name} {entry}: {warning}" for warning in f.warnings]
    columns = ("kernel", "entry", ">registers", ">spill stores / loads, B", ">shared, B", ">instructions", ">in the wgmma loop", "of them")
    return Table(title, columns, rows, "\n".join(notes))
