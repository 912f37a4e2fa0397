"""How much of a graph is certified, over the radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fgai.plots.canvas import DASHES, canvas, looks

Curve = Sequence[tuple[float, float]]  # radius, share of nodes


def certified_curves(panels: Mapping[str, Mapping[str, Curve]]) -> Any:
    """A matplotlib figure: a panel per dataset, a line per model, told apart by dash as well as colour.

    >>> figure = certified_curves({"cora": {"gat": [(0.01, 1.0), (0.1, 0.4)]}})
    >>> figure.axes[0].get_title()
    'cora'
    """
    figure, (axes,) = canvas(1, len(panels), sharey=True)
    drawn = looks(panels, linestyle=DASHES)
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for name, curve in curves.items():
            axis.plot(*zip(*curve, strict=True), marker="o", markersize=3, **drawn[name])
        axis.set(title=title, xlabel="radius (l1, attention space)", xscale="log", ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of nodes whose\nwhole top 10 is certified")
    for name, look in drawn.items():
        axes[0].plot([], [], label=name, **look)
    axes[0].legend(frameon=False)
    return figure
