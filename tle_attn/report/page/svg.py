"""A drawing in SVG: rectangles, text and curves, whose size is found from what is on it."""

from __future__ import annotations

from html import escape

from attrs import define, field

#: width of a character of the page's monospaced fonts, in font sizes; a little more than that of common ones
CHARACTER = 0.62
#: from the top of a line of text to its baseline, in font sizes
BASELINE = 0.8


def text_width(text: str, size: float) -> float:
    """Width that a line of text may take."""
    return len(text) * CHARACTER * size


@define
class Drawing:
    """Shapes in the order of drawing; y grows downwards.

    Attributes:
        label: what the picture shows, for readers who cannot see it.
        shapes: SVG elements.
        width, height: of what has been drawn, with a margin.
    """

    label: str
    shapes: list[str] = field(factory=list)
    width: float = 0.0
    height: float = 0.0

    def rect(self, x: float, y: float, width: float, height: float, kind: str, *, hint: str = "", color: str = "") -> None:
        """A rectangle of a style class `kind`; `hint` shows under the pointer; `color` overrides the class's fill."""
        self._reach(x + width, y + height)
        style = f' style="fill:{color}"' if color else ""
        title = f"<title>{escape(hint)}</title>" if hint else ""
        self.shapes.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.1):.1f}" height="{height:.1f}"{style}>{title}</rect>')

    def text(self, x: float, y: float, text: str, kind: str = "text", *, size: float = 11, anchor: str = "start") -> None:
        """A line of text whose top is at `y`; `anchor` "end" makes it end at `x`."""
        self._reach(x + (text_width(text, size) if anchor == "start" else 0), y + size * 1.2)
        self.shapes.append(f'<text class="{kind}" x="{x:.1f}" y="{y + BASELINE * size:.1f}" font-size="{size:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def curve(self, x: float, y: float, to_x: float, to_y: float, *, hint: str = "") -> None:
        """An arrow from the right side of one thing to the left side of another, or back."""
        self._reach(max(x, to_x), max(y, to_y))
        bend = max(24.0, abs(to_x - x) / 2) * (1 if to_x >= x else -1)
        title = f"<title>{escape(hint)}</title>" if hint else ""
        path = f"M{x:.1f},{y:.1f} C{x + bend:.1f},{y:.1f} {to_x - bend:.1f},{to_y:.1f} {to_x:.1f},{to_y:.1f}"
        self.shapes.append(f'<path class="edge" d="{path}" marker-end="url(#arrow)">{title}</path>')

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "grid") -> None:
        self._reach(max(x, to_x), max(y, to_y))
        self.shapes.append(f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>')

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x + 8), max(self.height, y + 8)

    def svg(self) -> str:
        marker = '<defs><marker id="arrow" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto"><path class="head" d="M0,0 L6,3 L0,6 z"/></marker></defs>'
        size = f'width="{self.width:.0f}" height="{self.height:.0f}" viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        inside = "\n".join(self.shapes)
        return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(self.label, quote=True)}" {size}>\n{marker if "marker-end" in inside else ""}{inside}\n</svg>'
