"""What the machine code of a compiled kernel says: registers, spills, shared memory, instructions."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

#: bytes that the driver keeps of every CTA's shared memory; the resource report counts them in, the limit of 227 KiB does not
RESERVED_SHARED = 1024
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);")
_LABEL = re.compile(r"\s*(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")


@frozen
class Facts:
    """Facts of one kernel's sm_90a machine code.

    Attributes:
        registers: per thread at launch (a warp-specialised kernel redistributes them afterwards).
        spill_stores, spill_loads: bytes per thread moved to and from local memory for lack of registers.
        shared_bytes: shared memory per CTA that the launch asks for, with what the code declares itself.
        stack_bytes: local-memory stack frame per thread.
        instructions: machine instructions without padding.
        opcodes: how often each opcode occurs (``HGMMA``, ``UTMALDG``, ``BAR.SYNC``, ...), suffixes that only select a data shape dropped.
        loop_instructions, loop_opcodes: the same for the innermost loop that holds a wgmma; 0 and empty where none does.
        warnings: ptxas remarks about performance, for instance serialised wgmma (C7510).
    """

    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    stack_bytes: int
    instructions: int
    opcodes: dict[str, int]
    loop_instructions: int
    loop_opcodes: dict[str, int]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "warnings": list(self.warnings)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Facts:
        """The inverse of :meth:`to_dict`."""
        return cls(**{**values, "warnings": tuple(values["warnings"])})


# Opcodes whose first suffix says which instruction it is; of the others the base name does.
_KEEP_SUFFIX = ("BAR", "SYNCS", "MUFU", "MEMBAR", "CCTL", "FENCE", "SHFL", "VOTE", "UCGABAR")


def opcode_name(opcode: str) -> str:
    """The name an opcode is counted under: ``MUFU.EX2``, but ``HGMMA`` for ``HGMMA.64x8x16.F32.BF16``."""
    parts = opcode.split(".")
    return ".".join(parts[:2]) if parts[0].startswith(_KEEP_SUFFIX) else parts[0]


def parse_sass(sass: str) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """(opcode, operands) of every instruction but trailing padding, and label -> index of the instruction behind it."""
    code: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(code)
        if found := _INSTRUCTION.search(line):
            code.append((found[1], found[2]))
    while code and code[-1][0] == "NOP":
        code.pop()
    return code, labels


def innermost_wgmma_loop(code: list[tuple[str, str]], labels: dict[str, int]) -> list[str]:
    """Opcodes of the shortest backward-branch loop that holds a wgmma.

    A loop body may issue its wgmma in several blocks; among loops that are not nested the shortest is taken.
    """
    best: list[str] = []
    for index, (opcode, operands) in enumerate(code):
        target = _TARGET.search(operands)
        if opcode.startswith("BRA") and target and labels.get(target[1], index + 1) <= index:
            body = [name for name, _ in code[labels[target[1]]:index + 1]]
            # a jump back from code that was moved behind the kernel's end is no loop
            whole = not any(name.startswith("EXIT") for name in body)
            if whole and any("GMMA" in name for name in body) and (not best or len(body) < len(best)):
                best = body
    return best


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _run(*command: str | Path) -> str:
    """What a tool prints; which of its outputs it uses differs between versions."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def measure(cubin: bytes, report: str, shared: int, tools: dict[str, str]) -> Facts:
    """Facts of a compiled kernel.

    Args:
        cubin: its machine code.
        report: what ``ptxas -v`` said when it made it.
        shared: dynamic shared memory of the launch, bytes.
        tools: paths of ``nvdisasm`` and ``cuobjdump``.
    """
    if "spill stores" not in report:
        raise ValueError("ptxas' report does not tell spills")
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(cubin)
        sass = _run(tools["nvdisasm"], "-c", binary)
        resources = _run(tools["cuobjdump"], "-res-usage", binary)
    code, labels = parse_sass(sass)
    loop = innermost_wgmma_loop(code, labels)
    warnings = tuple(dict.fromkeys(line.split(":", 1)[-1].strip() for line in report.splitlines() if re.search(r"\(C75\d\d\)", line)))
    return Facts(
        registers=_number(r"REG:(\d+)", resources),
        spill_stores=_number(r"(\d+) bytes spill stores", report),
        spill_loads=_number(r"(\d+) bytes spill loads", report),
        shared_bytes=shared + max(0, _number(r"SHARED:(\d+)", resources) - RESERVED_SHARED),
        stack_bytes=_number(r"STACK:(\d+)", resources),
        instructions=len(code),
        opcodes=dict(sorted(Counter(opcode_name(name) for name, _ in code).items())),
        loop_instructions=len(loop),
        loop_opcodes=dict(sorted(Counter(opcode_name(name) for name in loop).items())),
        warnings=warnings,
    )
