"""One page per kernel, with nothing outside of it: blocks and ports, the pipeline over time, shared memory, and every table of `explain`."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ... import __version__
from ...codegen import generate
from ..explain import explain
from ..table import Table
from .graph import graph
from .memory import memory
from .run import trace_of
from .timeline import busiest, timeline

if TYPE_CHECKING:
    from ...recipe import Recipe
    from ..floor import AnyWorkload

STYLE = """
:root { --ink: #1d2430; --faint: #5c6675; --paper: #ffffff; --line: #c9d0da; --card: #f4f6f9; --busy: #b9cbe0; --product: #2f6db3; --full: #4c9a6b; --filling: #cfe3d6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --faint: #9aa5b4; --paper: #14181f; --line: #3a4453; --card: #1d232d; --busy: #3c5473; --product: #78b0ee; --full: #4c9a6b; --filling: #2b4a39; } }
body { margin: 0 auto; max-width: 1280px; padding: 24px; color: var(--ink); background: var(--paper); font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 17px; margin: 32px 0 8px; } p { margin: 4px 0 10px; color: var(--faint); max-width: 90ch; }
figure { margin: 0; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; } th, td { text-align: left; vertical-align: top; padding: 3px 14px 3px 0; white-space: pre-line; }
th { color: var(--faint); font-weight: 600; border-bottom: 1px solid var(--line); } .number { text-align: right; font-variant-numeric: tabular-nums; }
svg { display: block; font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
svg text { fill: var(--ink); white-space: pre; } svg .strong { font-weight: 700; } svg .faint { fill: var(--faint); }
.node { fill: var(--card); stroke: var(--line); rx: 4; } .edge { fill: none; stroke: var(--faint); stroke-width: 1.1; opacity: .75; } .head { fill: var(--faint); }
.edge:hover { stroke: var(--product); stroke-width: 2.2; opacity: 1; }
.busy { fill: var(--busy); } .product { fill: var(--product); } .full { fill: var(--full); } .filling { fill: var(--filling); }
.free { fill: var(--card); stroke: var(--line); } .segment { stroke: var(--paper); stroke-width: .8; } .grid { stroke: var(--line); stroke-width: .6; }
footer { margin-top: 40px; color: var(--faint); font-size: 12px; }
"""


def page(recipe: Recipe, workload: AnyWorkload | None = None, *, protocol: bool = True) -> str:
    """HTML of the default point of a recipe; arguments as of `explain`."""
    kernel = recipe.kernel()
    head, *tables = explain(recipe, workload, protocol=protocol)
    said = "Each block with the functions that others call of it, the values that pass, and what it calls itself. Arrows go from caller to callee."
    pictures = [("Blocks and ports", said, graph(kernel))]
    if kernel.resources.barriers:
        cta = busiest(trace_of(kernel))
        said = (
            f"CTA {cta.program} of an emulated run that fills its ring and wraps around it. Time is nominal: an operation is a step, copies and products take longer; what "
            "the picture shows is who waits for whom, and how far producers run ahead. Point at a bar for the barrier or slot and the line of the generated cpu module."
        )
        pictures.append(("The pipeline over time", said, timeline(cta)))
    if kernel.resources.shared_bytes:
        pictures.append(("Shared memory", "What a CTA may use, to scale.", memory(kernel)))
    body = [f"<h1>{escape(head.title)}</h1>", _table(head)]
    for title, said, drawing in pictures:
        body += [f"<h2>{escape(title)}</h2>", f"<p>{escape(said)}</p>", f"<figure>{drawing.svg()}</figure>"]
    body += [f"<h2>{escape(t.title)}</h2>\n{_table(t)}" for t in tables]
    digest = generate(kernel, "gluon").digest
    body.append(f"<footer>tle_attn {__version__}, module {digest}</footer>")
    text = "\n".join(body)
    return f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(kernel.name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{text}\n</body>\n</html>\n'


def _table(table: Table) -> str:
    right = [name.startswith(">") for name in table.columns]

    def cells(tag: str, values: tuple[str, ...]) -> str:
        made = (f"<{tag} class='number'>{escape(v)}</{tag}>" if number else f"<{tag}>{escape(v)}</{tag}>" for v, number in zip(values, right, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    head = f"<thead>{cells('th', table.headings)}</thead>\n" if any(table.headings) else ""
    rows = "\n".join(cells("td", row) for row in table.rows)
    grid = f'<div class="wide"><table>\n{head}<tbody>\n{rows}\n</tbody>\n</table></div>' if table.rows else ""
    return grid + (f"<p>{escape(table.note)}</p>" if table.note else "")
