"""The pipeline of one CTA over time: what each role waits for, when products run, when each shared slot is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .svg import Drawing, text_width

if TYPE_CHECKING:
    from ...emu import Trace
    from ...emu.trace import CtaTrace

WIDTH, ROLE, SLOT, GAP, MARGIN = 1080.0, 22.0, 12.0, 8.0, 12.0
#: fills of waits, by the order in which barriers appear
COLORS = ("#d98c3f", "#8c6bb1", "#c0504d", "#4f9da6", "#b8a13c", "#7f7f7f", "#d16fa6", "#5b8c5a")


def busiest(trace: Trace) -> CtaTrace:
    """The CTA with the most fillings, the first of them in the grid's order."""
    return max(sorted(trace.ctas, key=lambda cta: cta.program), key=lambda cta: len(cta.fills))


def timeline(cta: CtaTrace) -> Drawing:
    """The picture."""
    slots = sorted({fill.slot for fill in cta.fills}, key=_natural)
    waits = list(dict.fromkeys(_family(s.what) for s in sorted(cta.spans, key=lambda s: s.start) if s.kind == "wait"))
    color = {what: COLORS[i % len(COLORS)] for i, what in enumerate(waits)}
    left = MARGIN + max(text_width(name, 11) for name in [*cta.roles, *slots]) + 12
    scale = WIDTH / max(cta.end, 1.0)
    drawing = Drawing(f"CTA {cta.program}: roles and shared slots over {cta.end:.0f} nominal steps")
    y = _legend(drawing, color, left)
    top = y
    for role, (start, end) in sorted(cta.roles.items(), key=lambda item: (item[1][0], item[0])):
        drawing.text(MARGIN, y + 4, role)
        drawing.rect(left + start * scale, y, (end - start) * scale, ROLE, "busy", hint=f"{role}: steps {start:.0f} to {end:.0f}")
        for span in (s for s in cta.spans if s.role == role):
            where = f"steps {span.start:.0f} to {span.end:.0f}, {span.place[0]} line {span.place[1]} of the module"
            x, width = left + span.start * scale, (span.end - span.start) * scale
            if span.kind == "wait":
                drawing.rect(x, y, width, ROLE - 7, "wait", hint=f"{role} waits for {span.what}: {where}", color=color[_family(span.what)])
            else:
                drawing.rect(x, y + ROLE - 6, width, 6, "product", hint=f"product of {span.what}: {where}")
        y += ROLE + GAP
    for slot in slots:
        drawing.text(MARGIN, y, slot)
        for number, fill in enumerate(f for f in cta.fills if f.slot == slot):
            said = f"{slot}, filling {number}: from step {fill.start:.0f}, full at {fill.full:.0f}, last read at {fill.end:.0f}"
            drawing.rect(left + fill.start * scale, y, (fill.full - fill.start) * scale, SLOT, "filling", hint=said)
            drawing.rect(left + fill.full * scale, y, (fill.end - fill.full) * scale, SLOT, "full", hint=said)
        y += SLOT + 4
    _axis(drawing, cta.end, left, scale, top, y)
    return drawing


def _legend(drawing: Drawing, color: dict[str, str], left: float) -> float:
    """Colors and what they mean, in lines; returns where the picture can go on."""
    entries = [("works", "busy", ""), ("product in flight", "product", ""), ("slot is being filled", "filling", ""), ("slot is full", "full", "")]
    entries += [(f"waits for {what}", "wait", fill) for what, fill in color.items()]
    x, y = MARGIN, MARGIN
    for said, kind, fill in entries:
        needs = 18 + text_width(said, 11) + 18
        if x + needs > left + WIDTH:
            x, y = MARGIN, y + 18
        drawing.rect(x, y, 12, 12, kind, color=fill)
        drawing.text(x + 18, y, said)
        x += needs
    return y + 30


def _axis(drawing: Drawing, end: float, left: float, scale: float, top: float, bottom: float) -> None:
    step = next(s for s in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**9) if end / s <= 16)
    for tick in range(0, int(end) + 1, step):
        x = left + tick * scale
        drawing.line(x, top - 4, x, bottom + 2)
        drawing.text(x + 2, bottom + 2, str(tick), "faint", size=10)
    drawing.text(left, bottom + 16, "nominal steps", "faint", size=10)


def _family(what: str) -> str:
    """k_full of k_full[2]."""
    return what.split("[")[0]


def _natural(slot: str) -> tuple[str, int]:
    """k_ring[10] after k_ring[9]."""
    name, _, index = slot.partition("[")
    return name, int(index.rstrip("]") or 0)
