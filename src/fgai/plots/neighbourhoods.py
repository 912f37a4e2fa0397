"""The neighbourhood of one node before and after the attack, a row per model: as a matrix, and as a star."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fgai.auditing import AuditReport, Neighbourhood
from fgai.errors import DataError
from fgai.plots.canvas import canvas

WHEN = ("before", "attacked")
STYLES = {"kept": ("-", 3.5), "lost": ("--", 2.5), "new": (":", 3.5), "other": ("-", 1.0)}


def attention_maps(reports: Mapping[str, AuditReport], node: int | None = None) -> Any:
    """Plot the attention between a node and its neighbours as a matrix; rows are targets, columns are sources.

    Cells without an edge are white, as are weak edges between neighbours, which a report leaves out. Injected nodes
    are marked with a star.

    Args:
        reports: Audits by model.
        node: The node; by default, the first with a neighbourhood in all reports.

    Returns:
        A matplotlib figure.
    """
    node, views = _views(reports, node)
    order = [node, *sorted({other for view in views.values() for other in view.neighbours} - {node})]
    figure, axes = canvas(len(views), 2, 3.6, 3.4)
    largest = _largest_weight(views)
    for row, (name, view) in zip(axes, views.items(), strict=True):
        for after, axis in enumerate(row):
            matrix = _matrix(view, order, after)
            axis.imshow(matrix, cmap="viridis_r", norm="log", vmin=largest / 1e3, vmax=largest)
            _label(axis, order, reports[name].graph["nodes"])
            axis.set_title(f"{name}, {WHEN[after]}")
        row[0].set_ylabel("looks")
    for axis in axes[-1]:
        axis.set_xlabel("is looked at")
    figure.colorbar(axes[0][0].images[0], ax=axes, label="attention", shrink=0.6)
    return figure


def stars(reports: Mapping[str, AuditReport], node: int | None = None) -> Any:
    """Plot the neighbours of a node as a star: top 5 kept (solid), lost (dashed) and new (dotted).

    Injected nodes are diamonds.

    Args:
        reports: Audits by model.
        node: The node; by default, the first with a neighbourhood in all reports.

    Returns:
        A matplotlib figure.
    """
    node, views = _views(reports, node)
    ring = sorted({other for view in views.values() for other in view.neighbours} - {node})
    angles = np.linspace(0, 2 * np.pi, len(ring), endpoint=False)
    places = dict(zip(ring, zip(np.sin(angles), np.cos(angles), strict=True), strict=True))
    figure, axes = canvas(len(views), 2, 3.2, 3.2)
    largest = _largest_weight(views)
    for row, (name, view) in zip(axes, views.items(), strict=True):
        for after, axis in enumerate(row):
            _star(axis, view, places, after, largest, reports[name].graph["nodes"])
            axis.set_title(f"{name}, {WHEN[after]}")
    _legend(figure, axes[0][0])
    return figure


def _views(reports: Mapping[str, AuditReport], node: int | None) -> tuple[int, dict[str, Neighbourhood]]:
    """The neighbourhood of the node in every report."""
    by_node = [{view.node: view for view in report.views} for report in reports.values()]
    shared = [view for view in by_node[0] if all(view in views for views in by_node)]
    if node is None and shared:
        node = shared[0]
    if node is None or node not in shared:
        raise DataError(
            f"node {node} is not in all of {', '.join(reports)}; they share {shared}; audit with show_nodes=[...]"
        )
    return node, {name: views[node] for name, views in zip(reports, by_node, strict=True)}


def _largest_weight(views: Mapping[str, Neighbourhood]) -> float:
    return max(weight or 0.0 for view in views.values() for link in view.links for weight in link[2:]) or 1.0


def _matrix(view: Neighbourhood, order: list[int], after: int) -> Any:
    place = {node: i for i, node in enumerate(order)}
    matrix = np.full((len(order), len(order)), np.nan)
    for link in view.links:
        if (weight := link[2 + after]) is not None:
            matrix[place[link[1]], place[link[0]]] = max(weight, 1e-12)
    return matrix


def _label(axis: Any, order: list[int], own: int) -> None:
    names = [f"{node}*" if node >= own else str(node) for node in order]
    axis.set_xticks(range(len(order)), names, rotation=90, fontsize=6)
    axis.set_yticks(range(len(order)), names, fontsize=6)


def _star(axis: Any, view: Neighbourhood, places: Mapping[int, Any], after: int, largest: float, own: int) -> None:
    for source, target, *weights in view.links:
        if target == view.node != source and (weight := weights[after]) is not None:
            dash, width = STYLES[view.status(source)]
            x, y = places[source]
            shade = 0.15 + 0.85 * max(0.0, 1 + np.log10(max(weight, 1e-12) / largest) / 3)
            axis.plot([0, x], [0, y], dash, linewidth=width, color="tab:blue", alpha=shade)
            axis.plot(
                x, y, "D" if source >= own else "o", color="tab:orange" if source >= own else "0.35", markersize=6
            )
            side = "center" if abs(x) < 0.3 else "left" if x > 0 else "right"
            axis.annotate(str(source), (1.1 * x, 1.12 * y), ha=side, va="center", fontsize=6)
    axis.plot(0, 0, "o", color="black", markersize=9)
    axis.set(xlim=(-1.5, 1.5), ylim=(-1.3, 1.3), aspect="equal")
    axis.set_axis_off()


def _legend(figure: Any, axis: Any) -> None:
    for name, (dash, width) in STYLES.items():
        axis.plot(
            [], [], dash, linewidth=width, color="tab:blue", label=name if name != "other" else "not in the top 5"
        )
    axis.plot([], [], "D", color="tab:orange", label="injected")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
