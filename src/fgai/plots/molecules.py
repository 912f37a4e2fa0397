"""Molecules drawn by element and bond, with the weight of each bond, as an SVG picture that needs no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from torch import Tensor
from torch_geometric.data import Data

from fgai.errors import DataError
from fgai.graph import require
from fgai.layout import Point, plane_layout

SIZE, HEAD, FOOT, MARGIN, COLUMNS = 330, 46, 40, 34, 2  # sizes in pixels, and panels in a row
WIDEST = 16.0  # stroke of the largest weight
COLOURS = {"C": "#111827", "O": "#dc2626", "N": "#2563eb", "H": "#9ca3af", "S": "#a16207", "Cl": "#15803d"}
WEIGHT, KNOWN, ADDED, BOND = "#f59e0b", "#16a34a", "#c026d3", "#6b7280"
DOTS = ' stroke-dasharray="2 4"'
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\""


def molecules(panels: Mapping[str, tuple[Data, Tensor]], elements: Sequence[str], known: Tensor | None = None) -> str:
    """Draw a molecule, and changed versions of it, with the weight of each bond.

    Atoms have the same place in all panels. Atoms that the first panel does not have were added: they are below the
    molecule, with dotted bonds. A bond of two directions has a weight for each; its half at an atom shows the weight
    of the direction towards this atom. The widest line of each panel is its largest weight.

    Args:
        panels: A molecule and the weights [E] of its edges, by title. `x` is one-hot over `elements`; `edge_attr`, if
            there is one, is one-hot over single, double and triple bonds.
        elements: The names of the columns of `x`.
        known: The edges of the first molecule that are a known reason, a mask [E]; they get a green line.

    Returns:
        The text of an SVG file.

    Raises:
        DataError: There is no panel, or the weights are not those of the edges.

    >>> import torch
    >>> water = Data(x=torch.eye(2)[[0, 1, 1]], edge_index=torch.tensor([[0, 1, 0, 2], [1, 0, 2, 0]]))
    >>> picture = molecules({"water": (water, torch.tensor([0.4, 0.1, 0.4, 0.1]))}, ["O", "H"])
    >>> picture.startswith("<svg"), picture.count(">H</text>")
    (True, 2)
    """
    if not panels:
        raise DataError("no molecule to draw; give at least one, such as {'molecule': (data, weight)}")
    for title, (graph, weight) in panels.items():
        if weight.shape != (graph.num_edges,):
            raise DataError(
                f"'{title}' has {graph.num_edges} edges and weights {list(weight.shape)}; give one for each"
            )
    first = next(iter(panels.values()))[0]
    own = int(first.num_nodes or 0)
    reasons = set() if known is None else {*map(tuple, require(first, "edge_index")[:, known].T.tolist())}
    columns, rows = min(COLUMNS, len(panels)), math.ceil(len(panels) / COLUMNS)
    width, height = SIZE * columns, (SIZE + HEAD) * rows + FOOT
    places, parts = _layout(first), []
    for number, (title, (graph, weight)) in enumerate(panels.items()):
        x, y = SIZE * (number % columns), (SIZE + HEAD) * (number // columns)
        parts.append(_text(x + SIZE / 2, y + 28, title, "#111827", 15))
        parts.append(f'<g transform="translate({x} {y + HEAD})">')
        parts += [*_panel(graph, weight, _with_added(places, graph, own), elements, reasons, own), "</g>"]
    added = any(int(graph.num_nodes or 0) > own for graph, _ in panels.values())
    parts += _legend(height - 16, bool(reasons), added)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'{FONT} role="img">\n<title>{escape("; ".join(panels))}</title>\n'
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _layout(graph: Data) -> dict[int, Point]:
    """The place of each atom in a panel."""
    places = plane_layout(int(graph.num_nodes or 0), require(graph, "edge_index").T.tolist())
    low, high = ([pick(place[axis] for place in places) for axis in (0, 1)] for pick in (min, max))
    scale = (SIZE - 2 * MARGIN) / max(high[0] - low[0], high[1] - low[1], 1e-9)
    room = [(SIZE - scale * (high[axis] - low[axis])) / 2 for axis in (0, 1)]
    return {
        atom: (room[0] + scale * (place[0] - low[0]), room[1] + scale * (place[1] - low[1]))
        for atom, place in enumerate(places)
    }


def _with_added(places: Mapping[int, Point], graph: Data, own: int) -> dict[int, Point]:
    """The places with those of the added atoms: a row at the lower edge of the panel."""
    added = range(own, int(graph.num_nodes or 0))
    step = SIZE / (len(added) + 1)
    return {**places, **{atom: (step * (atom - own + 1), SIZE - 8.0) for atom in added}}


def _panel(
    graph: Data,
    weight: Tensor,
    places: Mapping[int, Point],
    elements: Sequence[str],
    known: set[tuple[int, int]],
    own: int,
) -> list[str]:
    """The weights, then the bonds, then the atoms of one molecule."""
    edges, largest = require(graph, "edge_index").T.tolist(), float(weight.max()) if len(weight) else 0.0
    kinds = graph.get("edge_attr")
    marks, bonds = [], []
    for number, (source, target) in enumerate(edges):
        (x1, y1), (x2, y2) = places[source], places[target]
        share = max(float(weight[number]), 0.0) / (largest or 1.0)
        marks.append(_line((x1 + x2) / 2, (y1 + y2) / 2, x2, y2, WEIGHT, WIDEST * share, ' stroke-opacity="0.65"'))
        if source < target:
            is_known = (source, target) in known or (target, source) in known
            colour, dots = (ADDED, DOTS) if max(source, target) >= own else (KNOWN if is_known else BOND, "")
            order = 1 + int(kinds[number].argmax()) if kinds is not None and bool(kinds[number].any()) else 1
            length = math.hypot(x2 - x1, y2 - y1) or 1.0
            for line in range(order):
                aside = 4.0 * (line - (order - 1) / 2) / length
                dx, dy = -aside * (y2 - y1), aside * (x2 - x1)
                bonds.append(_line(x1 + dx, y1 + dy, x2 + dx, y2 + dy, colour, 2.4 if is_known else 1.6, dots))
    element_ids = require(graph, "x").argmax(1).tolist()
    atoms = [_atom(*places[atom], elements[int(kind)], atom >= own) for atom, kind in enumerate(element_ids)]
    return [*marks, *bonds, *atoms]


def _atom(x: float, y: float, element: str, added: bool) -> str:
    small = element == "H" and not added
    ring = f' stroke="{ADDED}" stroke-width="2"' if added else ""
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if small else 9}" fill="#ffffff" fill-opacity="0.9"{ring}/>'
    return circle + _text(x, y + (3 if small else 4.5), element, COLOURS.get(element, "#111827"), 9 if small else 13)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float, more: str = "") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:.1f}" stroke-linecap="round"{more}/>'


def _text(x: float, y: float, text: str, colour: str, size: int, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" font-weight="600" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _legend(y: float, known: bool, added: bool) -> list[str]:
    shown = [(WEIGHT, "weight of a bond", 8.0, "")]
    shown += [(KNOWN, "known reason", 2.4, "")] * known
    shown += [(ADDED, "added by the attack", 1.6, DOTS)] * added
    parts, x = [], 16.0
    for colour, label, width, dash in shown:
        parts += [_line(x, y, x + 22, y, colour, width, dash), _text(x + 30, y + 4, label, "#4b5563", 12, "start")]
        x += 52 + 6.6 * len(label)
    return parts
