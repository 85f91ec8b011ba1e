"""Pages of `explain --html`: one file with nothing outside of it, whose pictures hold what the kernel has, inside of their frames and not over each other."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import combinations

import pytest

import tle_attn
from tle_attn.codegen import calls_of
from tle_attn.report.page import page
from tle_attn.report.page.graph import graph
from tle_attn.report.page.memory import memory
from tle_attn.report.page.run import trace_of
from tle_attn.report.page.svg import CHARACTER, Drawing, text_width
from tle_attn.report.page.timeline import busiest, timeline
from tle_attn.spec import Kernel

RECIPES = tle_attn.list_recipes()
SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Balanced(HTMLParser):
    """Every element is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(drawing: Drawing) -> ET.Element:
    return ET.fromstring(drawing.svg())


def boxes(svg: ET.Element, kind: str) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of rectangles of a class."""
    found = []
    for rect in svg.iter(f"{SVG}rect"):
        if rect.get("class") == kind:
            x, y, w, h = (float(rect.get(k, "0")) for k in ("x", "y", "width", "height"))
            found.append((x, y, x + w, y + h))
    return found


def texts(svg: ET.Element) -> list[tuple[float, float, float, str]]:
    """(left, right, baseline, text), as wide as the page's fonts make it at most."""
    found = []
    for text in svg.iter(f"{SVG}text"):
        x, y, size = (float(text.get(k, "0")) for k in ("x", "y", "font-size"))
        width = CHARACTER * size * len(text.text or "")
        left = x - width if text.get("text-anchor") == "end" else x
        found.append((left, left + width, y, text.text or ""))
    return found


def check_frame(svg: ET.Element) -> None:
    """Everything lies inside of the view box, and no line of text over another."""
    _, _, width, height = map(float, svg.get("viewBox", "").split())
    assert (svg.get("width"), svg.get("height")) == (f"{width:.0f}", f"{height:.0f}") and width < 4000 and height < 8000
    for rect in svg.iter(f"{SVG}rect"):
        x, y, w, h = (float(rect.get(k, "0")) for k in ("x", "y", "width", "height"))
        assert 0 <= x and 0 <= y and x + w <= width and y + h <= height
    lines = texts(svg)
    for left, right, y, said in lines:
        assert 0 <= left and right <= width and 0 < y <= height, said
    for a, b in combinations(lines, 2):
        apart = abs(a[2] - b[2]) >= 9 or a[1] <= b[0] or b[1] <= a[0]
        assert apart, f"{a[3]!r} lies over {b[3]!r}"
    for path in svg.iter(f"{SVG}path"):
        if path.get("class") == "edge":
            numbers = list(map(float, re.findall(r"-?[\d.]+", path.get("d", ""))))
            assert 0 <= min(numbers) and max(numbers[1::2]) <= height


def apart(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


@pytest.fixture(params=RECIPES)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return tle_attn.load(request.param).kernel()


@pytest.fixture(params=[name for name in RECIPES if tle_attn.load(name).kernel().resources.barriers])
def pipeline(request: pytest.FixtureRequest) -> Kernel:
    """A kernel with roles and barriers."""
    return tle_attn.load(request.param).kernel()


def test_graph(kernel: Kernel) -> None:
    svg = parsed(graph(kernel))
    check_frame(svg)
    nodes = boxes(svg, "node")
    assert len(nodes) == len(kernel.blocks) and all(apart(a, b) for a, b in combinations(nodes, 2))
    for left, right, y, said in texts(svg):
        assert any(n[0] <= left and right <= n[2] and n[1] < y < n[3] for n in nodes), f"{said!r} is in no node"
    said = {t[3].strip() for t in texts(svg)}
    assert {f"{where}: {block.NAME}" for where, block in kernel.blocks} <= said
    edges = [p for p in svg.iter(f"{SVG}path") if p.get("class") == "edge"]
    hints = {p.find(f"{SVG}title").text for p in edges}
    assert hints == {f"{a} calls {function} of {b}" for a, b, function in calls_of(kernel)} and len(edges) == len(hints)
    for path in edges:
        x, y, *_, to_x, to_y = map(float, re.findall(r"-?[\d.]+", path.get("d", "")))
        starts = [n for n in nodes if n[1] < y < n[3] and x in (n[0], n[2])]
        ends = [n for n in nodes if n[1] < to_y < n[3] and to_x in (n[0], n[2])]
        assert starts and ends and starts != ends, "an arrow begins and ends at the side of a block"


def test_calls_between_blocks_are_those_of_the_text(kernel: Kernel) -> None:
    """Each of them is a call in the generated module, of a function that stands below the callee's title there."""
    text = tle_attn.generate(kernel, "cpu").text
    sections = text.split("\n# ---- ")[1:]
    for _, callee, function in calls_of(kernel):
        assert re.search(rf"(?<!def )\b{function}\(", text)
        if function not in kernel.mainloop.CHAINS:
            (section,) = [s for s in sections if f"\ndef {function}(" in s]
            assert section.startswith(f"{callee}: ")


def test_timeline(pipeline: Kernel) -> None:
    cta = busiest(trace_of(pipeline))
    svg = parsed(timeline(cta))
    check_frame(svg)
    lanes = boxes(svg, "busy")[1:]  # the first one explains the color
    assert len(lanes) == len(cta.roles) and all(apart(a, b) for a, b in combinations(lanes, 2))
    for kind, count in (("wait", sum(s.kind == "wait" for s in cta.spans)), ("product", sum(s.kind == "product" for s in cta.spans))):
        bars = [b for b in boxes(svg, kind) if b[1] >= lanes[0][1]]
        assert len(bars) == count
        assert all(any(lane[0] - 0.2 <= b[0] and b[2] <= lane[2] + 0.2 and lane[1] <= b[1] and b[3] <= lane[3] + 0.2 for lane in lanes) for b in bars)
    bars = [b for b in boxes(svg, "full") if b[1] >= lanes[0][1]]
    assert len(bars) == len(cta.fills)
    assert all(b[0] >= a[2] - 0.2 for a, b in zip(sorted(bars, key=lambda r: (r[1], r[0])), sorted(bars, key=lambda r: (r[1], r[0]))[1:]) if a[1] == b[1])
    said = {t[3] for t in texts(svg)}
    assert set(cta.roles) <= said and {f.slot for f in cta.fills} <= said
    assert {f"waits for {s.what.split('[')[0]}" for s in cta.spans if s.kind == "wait"} <= said


def test_memory_is_to_scale(pipeline: Kernel) -> None:
    kernel = pipeline
    svg = parsed(memory(kernel))
    check_frame(svg)
    (whole, _) = boxes(svg, "free")
    segments = [b for b in boxes(svg, "segment") if b[1] == whole[1]]
    r = kernel.resources
    limit = min(227 * 1024, 228 * 1024 // r.ctas_per_sm - 1024)
    covered = sum(b[2] - b[0] for b in segments)
    assert covered == pytest.approx((whole[2] - whole[0]) * r.shared_bytes / limit, abs=0.2 * len(segments))
    ordered = sorted(segments)
    assert ordered[0][0] == whole[0] and all(abs(a[2] - b[0]) < 0.3 for a, b in zip(ordered, ordered[1:]))
    for b in r.buffers:
        assert any(t[3] == f"{b.name} {b.nbytes:,} B" for t in texts(svg))


def test_a_page_needs_nothing_outside_of_it() -> None:
    text = page(tle_attn.load("variants/decode_bf16_window"), protocol=False)
    parser = Balanced()
    parser.feed(text)
    assert parser.open == [] and parser.seen.count("svg") == 3
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(parser.seen)
    assert not re.search(r"""\b(?:src|href)\s*=|@import|url\((?!#arrow\))""", text)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    for part in ("Blocks and ports", "The pipeline over time", "Shared memory", "Roles", "Time floor", "Differences against hy3/decode_bf16", "window = 4096"):
        assert part in text
    for table in tle_attn.report.explain(tle_attn.load("variants/decode_bf16_window"), protocol=False):
        for row in table.rows:
            for cell in row:
                assert cell.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;").replace("'", "&#x27;") in text


def test_a_kernel_without_barriers_has_no_timeline() -> None:
    text = page(tle_attn.load("merge/stack"), protocol=False)
    assert "Blocks and ports" in text and "The pipeline over time" not in text and text.count("<svg") == 1


def test_pages_are_the_same_every_time() -> None:
    recipe = tle_attn.load("hy3/decode_fp8")
    assert page(recipe, protocol=False) == page(recipe, protocol=False)


def test_text_is_escaped_and_measured() -> None:
    drawing = Drawing('a "b" <c>')
    drawing.text(10, 10, "x < y & z")
    svg = parsed(drawing)
    assert svg.get("aria-label") == 'a "b" <c>' and svg.find(f"{SVG}text").text == "x < y & z"
    assert drawing.width >= 10 + text_width("x < y & z", 11)
