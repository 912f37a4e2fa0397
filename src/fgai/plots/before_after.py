"""One node before and after the attack, a row per model, as an SVG picture that needs no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fgai.auditing import AuditReport, Neighbourhood
from fgai.errors import DataError

SHOWN = 12  # neighbours in a panel, besides those in a top 5
PANEL, ROW, LEFT, TOP, FOOT = 320, 290, 230, 104, 58  # sizes in pixels
RING = 104  # radius of the circle of neighbours
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

    The width of a line is the attention. Neighbours have the same place in all panels.

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
    places = _places([*views.values()], own)
    largest = max((weight or 0.0 for view in views.values() for link in view.links for weight in link[2:]), default=1.0)
    width, height = LEFT + 2 * PANEL, TOP + ROW * len(views) + FOOT
    centre = next(iter(views.values())).node
    name = next(iter(reports.values())).names.get(str(centre), f"node {centre}")
    parts = [
        _text(24, 38, f"What the model looks at to classify {_cut(name, 40)}", size=21, weight=600),
        _text(24, 62, f"Line width is attention. {_attack(reports)} {chosen}".strip(), size=13, fill=GREY),
        _text(LEFT + PANEL / 2, TOP - 8, "Before the attack", size=15, weight=600, anchor="middle"),
        _text(LEFT + PANEL * 1.5, TOP - 8, "Under attack", size=15, weight=600, anchor="middle"),
    ]
    for number, (title, view) in enumerate(views.items()):
        top = TOP + ROW * number
        parts += [f'<line x1="24" x2="{width - 24}" y1="{top}" y2="{top}" stroke="#e5e7eb"/>']
        parts += _caption(title, reports[title], view, top)
        for after in (0, 1):
            x, y = LEFT + PANEL * (after + 0.5), top + ROW / 2
            parts += _panel(view, places, after, largest, own, x, y)
    parts += _legend(height, any(other >= own for other in places))
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


def _places(views: Sequence[Neighbourhood], own: int) -> dict[int, tuple[float, float]]:
    """The place of each neighbour on the circle, the same for all models; injected nodes are spread between others."""
    required = {other for view in views for other in (*view.top_before, *view.top_after)}
    weights: dict[int, float] = {}
    for view in views:
        for source, target, *values in view.links:
            if target == view.node != source:
                weights[source] = max(weights.get(source, 0.0), *(value or 0.0 for value in values))
    ranked = sorted(weights, key=lambda source: (source not in required, -weights[source], source))
    chosen = ranked[: max(SHOWN, len(required))]
    fakes, real = [n for n in chosen if n >= own], [n for n in chosen if n < own]
    step = (len(real) + len(fakes)) / max(len(fakes), 1)
    ring = list(real)
    for number, fake in enumerate(fakes):
        ring.insert(round(number * step + step / 2), fake)
    angles = [2 * math.pi * number / len(ring) for number in range(len(ring))]
    return {n: (RING * math.sin(a), -RING * math.cos(a)) for n, a in zip(ring, angles, strict=True)}


def _panel(
    view: Neighbourhood,
    places: Mapping[int, tuple[float, float]],
    after: int,
    largest: float,
    own: int,
    x: float,
    y: float,
) -> list[str]:
    """The star of one model, before or after, around (x, y)."""
    lines, nodes = [], []
    for source, target, *weights in view.links:
        if target != view.node or source == target or source not in places or (weight := weights[after]) is None:
            continue
        status = view.status(source) if after else ("kept" if source in view.top_before else "other")
        colour, (dx, dy) = COLOURS[status], places[source]
        width = max(1.4, WIDEST * weight / largest)
        dash = ' stroke-dasharray="5 4"' if status == "lost" else ""
        lines.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + dx:.1f}" y2="{y + dy:.1f}" stroke="{colour}" '
            f'stroke-width="{width:.1f}" stroke-opacity="0.8"{dash}/>'
        )
        nodes += _neighbour(source, x + dx, y + dy, colour, source >= own, outward=(dx, dy))
    centre = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="13" fill="{INK}" stroke="#fff" stroke-width="2"/>']
    return [*lines, *nodes, *centre]


def _neighbour(number: int, x: float, y: float, colour: str, is_fake: bool, outward: tuple[float, float]) -> list[str]:
    """The mark of a neighbour and its name: a circle, or a diamond for an injected node."""
    dx, dy = outward[0] / RING, outward[1] / RING
    if is_fake:
        mark = (
            f'<path d="M{x:.1f} {y - 10:.1f} L{x + 10:.1f} {y:.1f} L{x:.1f} {y + 10:.1f} L{x - 10:.1f} {y:.1f} Z" '
            f'fill="{FAKE}" stroke="#fff" stroke-width="1.5"/>'
        )
    else:
        mark = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7.5" fill="{colour}" stroke="#fff" stroke-width="1.5"/>'
    anchor = "middle" if abs(dx) < 0.35 else "start" if dx > 0 else "end"
    label, ink = ("fake", FAKE) if is_fake else (str(number), GREY)
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
        _text(24, middle + 73, "most attended neighbours", size=13, fill=GREY),
    ]


def _attack(reports: Mapping[str, AuditReport]) -> str:
    """A sentence about the attack."""
    adversary = next(iter(reports.values())).adversary
    if "nodes" in adversary and "edges" in adversary:
        return f"The attack adds {adversary['nodes']} fake nodes with {adversary['edges']} links each."
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
        mark = _neighbour(0, x + 10, height - 26, FAKE, True, outward=(RING, 0))[0]
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
