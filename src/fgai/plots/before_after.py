"""One node before and after the attack, a row per model, as an SVG picture that needs no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from fgai.auditing import AuditReport, Neighbourhood
from fgai.errors import DataError

SHOWN = 12  # neighbours in a panel, unless the tops have more
PANEL, ROW, LEFT, TOP, FOOT = 345, 312, 230, 104, 58  # sizes in pixels
RING, OUTER, STEP = 86, 118, 0.25  # radii of neighbours, and of nodes two links away; their angle
WIDEST = 15.0  # stroke of the largest attention weight
COLOURS = {"kept": "#1d4ed8", "lost": "#b91c1c", "new": "#d97706", "other": "#9ca3af"}
LABELS = {
    "kept": "in the top 5",
    "lost": "lost from the top 5",
    "new": "new in the top 5",
    "other": "not in the top 5",
}
INK, GREY, FAKE = "#111827", "#4b5563", "#d97706"
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\""


def before_after(reports: Mapping[str, AuditReport], node: int | None = None) -> str:
    """Draw the neighbours of one node and its attention to them, before and after the attack.

    The width of a line is the weight of the edge in the explanation. Neighbours have the same place in all panels.
    Nodes two links away are shown if they are in a top 5. The ring around the node is its weight for itself. In a typed
    graph, neighbours have their names.

    Args:
        reports: Audits of one graph by the name of the model, such as `Comparison.reports`.
        node: The node. By default, one of which the first model keeps least and the last model most, if possible
            with an injected neighbour.

    Returns:
        The text of an SVG file.

    Raises:
        DataError: The reports share no neighbourhood, or not that of `node`.

    >>> from fgai import NodeInjection, backbones, compare, datasets
    >>> data = datasets.load("synthetic")
    >>> result = compare({"GAT": backbones.build("gat", data)}, data, NodeInjection(2, 5, steps=1), seeds=1)
    >>> picture = before_after(result.reports)
    >>> picture.startswith("<svg"), "Before the attack" in picture
    (True, True)
    """
    views, count = _views_of(reports, node)
    chosen = f"Of {count} nodes, the models differ most on this one." if node is None and len(reports) > 1 else ""
    own = next(iter(reports.values())).graph["nodes"]
    layout = _layout([*views.values()], own)
    largest = max((weight or 0.0 for view in views.values() for link in view.links for weight in link[2:]), default=1.0)
    width, height = LEFT + 2 * PANEL, TOP + ROW * len(views) + FOOT
    centre = next(iter(views.values())).node
    name = next(iter(reports.values())).names.get(str(centre), f"node {centre}")
    names = {node: label for report in reports.values() if report.types for node, label in report.names.items()}
    parts = [
        _text(24, 38, f"What the model looks at to classify {_cut(name, 40)}", size=21, weight=600),
        _text(24, 62, f"Line width: weight of a link. {_attack(reports)} {chosen}".strip(), size=13, fill=GREY),
        _text(LEFT + PANEL / 2, TOP - 8, "Before the attack", size=15, weight=600, anchor="middle"),
        _text(LEFT + PANEL * 1.5, TOP - 8, "Under attack", size=15, weight=600, anchor="middle"),
    ]
    for number, (title, view) in enumerate(views.items()):
        top = TOP + ROW * number
        parts += [f'<line x1="24" x2="{width - 24}" y1="{top}" y2="{top}" stroke="#e5e7eb"/>']
        parts += _caption(title, reports[title], view, top)
        for after in (0, 1):
            x, y = LEFT + PANEL * (after + 0.5), top + ROW / 2
            parts += _panel(view, layout, after, largest, own, names, x, y)
    parts += _legend(height, any(other >= own for other in layout.places))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'{FONT} role="img">\n<title>{escape(_summary(reports))}</title>\n'
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _views_of(reports: Mapping[str, AuditReport], node: int | None) -> tuple[dict[str, Neighbourhood], int]:
    """The neighbourhood of one node in each report, and how many nodes the reports share."""
    by_node = [{view.node: view for view in report.views} for report in reports.values()]
    shared = [number for number in by_node[0] if all(number in views for views in by_node)]
    if (node is not None and node not in shared) or not shared:
        raise DataError(
            f"node {node} is not in all of {', '.join(reports)}; they share {shared}; audit with show_nodes=[...]"
        )
    if node is None:
        own = next(iter(reports.values())).graph["nodes"]
        first, last = by_node[0], by_node[-1]
        node = max(
            shared,
            key=lambda one: (
                _stable_count(last[one]) - _stable_count(first[one]) + (max(first[one].top_after, default=0) >= own)
            ),
        )
    return {name: views[node] for name, views in zip(reports, by_node, strict=True)}, len(shared)


def _stable_count(view: Neighbourhood) -> int:
    """The number of neighbours in the top 5 both before and after."""
    return len({*view.top_before} & {*view.top_after})


class _Layout(NamedTuple):
    """Where each node is drawn, relative to the node in the middle, and the neighbour that links to it."""

    places: dict[int, tuple[float, float]]
    parents: dict[int, int]  # of nodes two links away


def _layout(views: Sequence[Neighbourhood], own: int) -> _Layout:
    """The places on two circles, the same for all models; injected neighbours are spread between the others."""
    node = views[0].node
    tops = {other for view in views for other in (*view.top_before, *view.top_after)} - {node}
    weights: dict[tuple[int, int], float] = {}
    for view in views:
        for source, target, *values in view.links:
            if source not in (node, target):
                weights[source, target] = max(weights.get((source, target), 0.0), *(value or 0.0 for value in values))
    near = {source: weight for (source, target), weight in weights.items() if target == node}
    parents: dict[int, int] = {}
    for source, target in sorted(weights, key=lambda ends: weights[ends]):
        if source in tops and source not in near and target in near:
            parents[source] = target  # the strongest comes last
    required = (tops & near.keys()) | {*parents.values()}
    ranked = sorted(near, key=lambda source: (source not in required, -near[source], source))
    ring = _spread(ranked[: max(SHOWN, len(required))], own)
    angles = {source: math.pi * (0.5 + 2 * number / len(ring)) for number, source in enumerate(ring)}
    places = {source: _on_circle(RING, angle) for source, angle in angles.items()}
    for parent in dict.fromkeys(parents.values()):
        children = sorted(child for child in parents if parents[child] == parent)
        for number, child in enumerate(children):
            places[child] = _on_circle(OUTER, angles[parent] + STEP * (number - (len(children) - 1) / 2))
    return _Layout(places, parents)


def _spread(nodes: Sequence[int], own: int) -> list[int]:
    """The nodes in their order, with the injected ones at equal distances between the others."""
    fakes, ring = [n for n in nodes if n >= own], [n for n in nodes if n < own]
    step = len(nodes) / max(len(fakes), 1)
    for number, fake in enumerate(fakes):
        ring.insert(round(number * step + step / 2), fake)
    return ring


def _on_circle(radius: float, angle: float) -> tuple[float, float]:
    return radius * math.sin(angle), -radius * math.cos(angle)


def _panel(
    view: Neighbourhood,
    layout: _Layout,
    after: int,
    largest: float,
    own: int,
    names: Mapping[str, str],
    x: float,
    y: float,
) -> list[str]:
    """The links of one model, before or after, around (x, y); neighbours have their names, or else their numbers."""
    lines, marks, ring = [], [], []
    for source, target, *weights in view.links:
        weight = weights[after]
        if weight is None:
            continue
        status = view.status(source) if after else ("kept" if source in view.top_before else "other")
        width = max(1.4, WIDEST * weight / largest)
        dash = ' stroke-dasharray="5 4"' if status == "lost" else ""
        stroke = f'stroke="{COLOURS[status]}" stroke-width="{width:.1f}" stroke-opacity="0.8"{dash}'
        if source == target == view.node:
            ring.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{15 + width / 2:.1f}" fill="none" {stroke}/>')
        elif source in layout.places and target == layout.parents.get(source, view.node):
            (dx, dy), (tx, ty) = layout.places[source], layout.places.get(target, (0.0, 0.0))
            lines.append(f'<line x1="{x + tx:.1f}" y1="{y + ty:.1f}" x2="{x + dx:.1f}" y2="{y + dy:.1f}" {stroke}/>')
            aside = source in layout.parents.values()  # others are drawn where its name would be
            label = "fake" if source >= own else _cut(names.get(str(source), str(source)), 16)
            marks += _neighbour(
                label, x + dx, y + dy, COLOURS[status], source >= own, outward=(-dy, dx) if aside else (dx, dy)
            )
    middle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="13" fill="{INK}" stroke="#fff" stroke-width="2"/>'
    return [*lines, *marks, *ring, middle]


def _neighbour(label: str, x: float, y: float, colour: str, is_fake: bool, outward: tuple[float, float]) -> list[str]:
    """The mark of a neighbour and its name: a circle, or a diamond for an injected node."""
    length = math.hypot(*outward)
    dx, dy = outward[0] / length, outward[1] / length
    if is_fake:
        mark = (
            f'<path d="M{x:.1f} {y - 10:.1f} L{x + 10:.1f} {y:.1f} L{x:.1f} {y + 10:.1f} L{x - 10:.1f} {y:.1f} Z" '
            f'fill="{FAKE}" stroke="#fff" stroke-width="1.5"/>'
        )
    else:
        mark = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7.5" fill="{colour}" stroke="#fff" stroke-width="1.5"/>'
    anchor = "middle" if abs(dx) < 0.35 else "start" if dx > 0 else "end"
    ink = FAKE if is_fake else GREY
    name = _text(x + 15 * dx, y + 19 * dy + 4, label, size=11, anchor=anchor, fill=ink, weight=600 if is_fake else 400)
    return [mark, name]


def _caption(title: str, report: AuditReport, view: Neighbourhood, top: float) -> list[str]:
    """The name of a model, its accuracy before and after as two bars, and how many neighbours it keeps."""
    middle = top + ROW / 2
    parts = [_text(24, middle - 72, _cut(title, 22), size=18, weight=700)]
    for y, label, value, colour in (
        (middle - 44, "F1 before", report.clean["f1"], "#1d4ed8"),
        (middle - 2, "F1 under attack", report.attacked["f1"].mean, "#b91c1c"),
    ):
        length = 0.0 if math.isnan(value) else 150 * value
        parts += [
            _text(24, y, label, size=13, fill=GREY),
            f'<rect x="24" y="{y + 7:.1f}" width="150" height="13" rx="3" fill="#f3f4f6"/>',
            f'<rect x="24" y="{y + 7:.1f}" width="{length:.1f}" height="13" rx="3" fill="{colour}"/>',
            _text(181, y + 18, f"{value:.1%}", size=13, weight=600),
        ]
    keeps = f"keeps {_stable_count(view)} of its {len(view.top_before)}"
    return [
        *parts,
        _text(24, middle + 54, keeps, size=15, weight=600),
        _text(24, middle + 73, "highest-ranked nodes", size=13, fill=GREY),
    ]


def _attack(reports: Mapping[str, AuditReport]) -> str:
    """A sentence about the attack."""
    adversary = next(iter(reports.values())).adversary
    if "nodes" in adversary and "edges" in adversary:
        return f"The attack adds {adversary['nodes']} fake nodes of {adversary['edges']} links."
    return f"The attack is {adversary['name']}."


def _summary(reports: Mapping[str, AuditReport]) -> str:
    """The accuracy of each model before and after, as the title of the picture."""
    return "; ".join(
        f"{n}: F1 {r.clean['f1']:.0%}, under attack {r.attacked['f1'].mean:.0%}" for n, r in reports.items()
    )


def _legend(height: float, has_fakes: bool) -> list[str]:
    parts, x = [], 24.0
    for status, label in LABELS.items():
        dash = ' stroke-dasharray="5 4"' if status == "lost" else ""
        parts += [
            f'<line x1="{x:.0f}" x2="{x + 26:.0f}" y1="{height - 26}" y2="{height - 26}" '
            f'stroke="{COLOURS[status]}" stroke-width="4"{dash}/>',
            _text(x + 33, height - 22, label, size=12, fill=GREY),
        ]
        x += 52 + 6.4 * len(label)
    if has_fakes:
        mark = _neighbour("", x + 10, height - 26, FAKE, True, outward=(RING, 0))[0]
        parts += [mark, _text(x + 27, height - 22, "injected node", size=12, fill=GREY)]
    return parts


def _text(
    x: float, y: float, text: str, *, size: int, weight: int = 400, anchor: str = "start", fill: str = INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{fill}">{escape(text)}</text>'
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
