"""How much of a graph is certified, over the radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fgai.plots.canvas import DASHES, canvas

Curve = Sequence[tuple[float, float]]  # radius, share of nodes


def certified_curves(panels: Mapping[str, Mapping[str, Curve]]) -> Any:
    """A matplotlib figure: a panel per dataset, a line per model, told apart by dash as well as colour.

    >>> figure = certified_curves({"cora": {"gat": [(0.01, 1.0), (0.1, 0.4)]}})
    >>> figure.axes[0].get_title()
    'cora'
    """
    figure, (axes,) = canvas(1, len(panels), sharey=True)
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for (name, curve), dash in zip(curves.items(), DASHES * len(curves), strict=False):
            axis.plot(*zip(*curve, strict=True), dash, marker="o", markersize=3, label=name)
        axis.set(title=title, xlabel="radius (l1, attention space)", xscale="log", ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of nodes whose\nwhole top 10 is certified")
    axes[0].legend(frameon=False)
    return figure
