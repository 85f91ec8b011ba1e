"""The shared memory of a CTA, to scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...checks.resources import shared_limit, shared_table
from .svg import Drawing, text_width

if TYPE_CHECKING:
    from ...spec import Kernel

WIDTH, HEIGHT, MARGIN = 1080.0, 34.0, 12.0
COLORS = ("#5b84b1", "#6fa287", "#c9a24b", "#a8739c", "#c07b5b", "#7d8a97", "#9aa84f", "#5f9ea0")


def memory(kernel: Kernel) -> Drawing:
    """A bar as long as what a CTA may use, with what each buffer takes; the order is that of the spec, addresses are the compiler's."""
    resources = kernel.resources
    limit = shared_limit(resources.ctas_per_sm)
    rows = [row for row in shared_table(resources) if row[0] != "sum"]
    drawing = Drawing(f"Shared memory of {kernel.name}: {resources.shared_bytes:,} of {limit:,} bytes")
    x = MARGIN
    drawing.rect(MARGIN, MARGIN, WIDTH, HEIGHT, "free", hint=f"{limit - resources.shared_bytes:,} bytes are free")
    slots = {b.name: b.shape[0] for b in resources.buffers if len(b.shape) == 3}
    for i, (name, what, nbytes) in enumerate(rows):
        width = WIDTH * nbytes / limit
        for s in range(slots.get(name, 1)):
            part = width / slots.get(name, 1)
            drawing.rect(x + s * part, MARGIN, part, HEIGHT, "segment", hint=f"{name} {what}: {nbytes:,} bytes", color=COLORS[i % len(COLORS)])
        x += width
    y = MARGIN + HEIGHT + 10
    x = MARGIN
    for i, (name, what, nbytes) in enumerate([*rows, ("free", "", limit - resources.shared_bytes)]):
        said = f"{name} {nbytes:,} B"
        needs = 18 + text_width(said, 11) + 18
        if x + needs > MARGIN + WIDTH:
            x, y = MARGIN, y + 18
        drawing.rect(x, y, 12, 12, "free" if name == "free" else "segment", color="" if name == "free" else COLORS[i % len(COLORS)])
        drawing.text(x + 18, y, said)
        x += needs
    return drawing
