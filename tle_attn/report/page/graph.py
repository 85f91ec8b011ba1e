"""The blocks of a kernel and what they call of each other, as a graph: callers to the left of what they call."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from attrs import define, field

from ...codegen import calls_of
from .svg import Drawing, text_width

if TYPE_CHECKING:
    from ...spec import Kernel

ROW, GAP, MARGIN, PAD = 16.0, 20.0, 12.0, 10.0
BETWEEN_COLUMNS = 110.0
#: characters of a line of a block's description
TITLE = 46


@define
class Node:
    """A block: its name and what it is, functions that others call (with their ports), and functions that it calls."""

    where: str
    name: str
    title: list[str]
    offers: dict[str, list[str]] = field(factory=dict)  #: function -> lines of its ports
    calls: list[str] = field(factory=list)
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0

    @property
    def heading(self) -> str:
        return f"{self.where}: {self.name}"

    @property
    def needs(self) -> float:
        """Width of its longest line."""
        small = [*self.title, *(f"  {line}" for lines in self.offers.values() for line in lines)]
        plain = [*self.offers, *(f"{name} >" for name in self.calls)]
        return max(text_width(self.heading, 12), *(text_width(line, 10) for line in small), *(text_width(line, 11) for line in plain), 0) + 2 * PAD

    @property
    def height(self) -> float:
        return PAD + ROW * (1 + len(self.title) + sum(1 + len(lines) for lines in self.offers.values()) + len(self.calls)) + PAD / 2

    def row_of(self, function: str, *, called: bool) -> float:
        """Middle of the row of a function that it offers, or (`called`) that it calls."""
        row = 1 + len(self.title)
        for name, lines in self.offers.items():
            if name == function and not called:
                return self.y + PAD + ROW * (row + 0.5)
            row += 1 + len(lines)
        return self.y + PAD + ROW * (row + self.calls.index(function) + 0.5)


def nodes_of(kernel: Kernel) -> tuple[dict[str, Node], list[tuple[str, str, str]]]:
    """Nodes by recipe key, and (caller, callee, function) of every call."""
    order = [where for where, _ in kernel.blocks]
    calls = sorted(calls_of(kernel), key=lambda call: (order.index(call[0]), order.index(call[1])))
    nodes = {where: Node(where, block.NAME, textwrap.wrap(block.title(), TITLE)) for where, block in kernel.blocks}
    ports = {name: [str(p) for p in f.inputs] + [f"-> {p}" for p in f.outputs] for name, (_, f) in kernel.provided.items()}
    for caller, callee, function in calls:
        nodes[callee].offers[function] = ports.get(function, [])
        nodes[caller].calls.append(function)
    return nodes, calls


def columns_of(nodes: dict[str, Node], calls: list[tuple[str, str, str]]) -> list[list[Node]]:
    """Nodes by column: the mainloop first, each other block to the right of all that call it; calls back to an earlier column do not count."""
    last = list(nodes)[-1]
    column = {where: 0 if where == last else 1 for where in nodes}
    for _ in nodes:
        for caller, callee, _function in calls:
            # a call to the mainloop, or of two blocks to each other, goes back
            if callee != last and caller != last and (callee, caller) not in {(a, b) for a, b, _ in calls}:
                column[callee] = max(column[callee], min(column[caller] + 1, len(nodes)))
    made: list[list[Node]] = [[] for _ in range(max(column.values()) + 1)]
    for where, node in nodes.items():
        made[column[where]].append(node)
    return [nodes for nodes in made if nodes]


def graph(kernel: Kernel) -> Drawing:
    """The picture."""
    nodes, calls = nodes_of(kernel)
    x = MARGIN
    for column in columns_of(nodes, calls):
        width, y = max(node.needs for node in column), MARGIN
        for node in column:
            node.x, node.y, node.width = x, y, width
            y += node.height + GAP
        x += width + BETWEEN_COLUMNS
    drawing = Drawing(f"Blocks of {kernel.name} and the functions that they call of each other")
    for caller, callee, function in calls:
        a, b = nodes[caller], nodes[callee]
        forward = b.x > a.x
        start, end = (a.x + a.width, b.x) if forward else (a.x, b.x + b.width)
        drawing.curve(start, a.row_of(function, called=True), end, b.row_of(function, called=False), hint=f"{caller} calls {function} of {callee}")
    for node in nodes.values():
        _draw(drawing, node)
    return drawing


def _draw(drawing: Drawing, node: Node) -> None:
    drawing.rect(node.x, node.y, node.width, node.height, "node")
    y = node.y + PAD
    drawing.text(node.x + PAD, y, node.heading, "strong", size=12)
    y += ROW
    for line in node.title:
        drawing.text(node.x + PAD, y, line, "faint", size=10)
        y += ROW
    for function, lines in node.offers.items():
        drawing.text(node.x + PAD, y, function)
        y += ROW
        for line in lines:
            drawing.text(node.x + PAD, y, f"  {line}", "faint", size=10)
            y += ROW
    for function in node.calls:
        drawing.text(node.x + node.width - PAD, y, f"{function} >", anchor="end")
        y += ROW
