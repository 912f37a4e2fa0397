"""Curves: deletion curves, loss terms and certified shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fgai.auditing.record import Curves
from fgai.methods import Epoch
from fgai.plots.canvas import DASHES, canvas, styles

MARKERS = "osD^v"
DELETED = {"most": "F+, most attended first", "least": "F-, least attended first"}


def f_curves(panels: Mapping[str, Mapping[str, Curves]]) -> Any:
    """Plot deletion curves: a column per backbone, F+ above F-.

    Each method has a colour and a marker. Lines are solid for the clean graph and dashed for the attacked one.

    Args:
        panels: Curves by backbone and method.

    Returns:
        A matplotlib figure.

    >>> from fgai import audit, backbones, datasets, NodeInjection
    >>> data = datasets.load("synthetic")
    >>> report = audit(backbones.build("gat", data), data, NodeInjection(2, 5, steps=1), seeds=1)
    >>> [axis.get_title() for axis in f_curves({"gat": {"vanilla": report.curves}}).axes]
    ['gat', '']
    """
    figure, axes = canvas(2, len(panels), sharex=True, sharey=True)
    style = styles(panels, marker=MARKERS, markersize=[4])
    for column, (title, methods) in enumerate(panels.items()):
        axes[0][column].set_title(title)
        for axis, first in zip(axes[:, column], DELETED, strict=True):
            for name, curves in methods.items():
                axis.plot(curves.shares, curves.clean[first], "-", **style[name])
                axis.plot(curves.shares, curves.attacked[first], "--", **style[name])
            axis.grid(alpha=0.3)
        axes[1][column].set_xlabel("share of edges deleted")
    for axis, label in zip(axes[:, 0], DELETED.values(), strict=True):
        axis.set_ylabel(f"{label}:\nshare still right")
    for name, line_style in style.items():
        axes[1][0].plot([], [], "-", label=name, **line_style)
    axes[1][0].plot([], [], "--", color="gray", label="attacked")
    axes[1][0].legend(frameon=False, fontsize=8)
    return figure


def loss_terms(histories: Mapping[str, Sequence[Epoch]]) -> Any:
    """Plot the weighted terms of the loss by epoch, a panel per model.

    Args:
        histories: Epochs by model.

    Returns:
        A matplotlib figure.

    >>> figure = loss_terms({"gat": [Epoch(0, {"closeness": 0.5}, 0.9), Epoch(1, {"closeness": 0.2}, 0.9)]})
    >>> figure.axes[0].get_xlabel()
    'epoch'
    """
    figure, (axes,) = canvas(1, len(histories), sharey=True)
    for axis, (title, history) in zip(axes, histories.items(), strict=True):
        for term, dash in zip(history[0].terms, DASHES * len(history[0].terms), strict=False):
            axis.plot([e.number for e in history], [e.terms[term] for e in history], dash, label=term, linewidth=1)
        axis.set(title=title, xlabel="epoch", yscale="log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("weighted term")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


Curve = Sequence[tuple[float, float]]  # radius, share of nodes


def certified_curves(panels: Mapping[str, Mapping[str, Curve]]) -> Any:
    """Plot the certified share by radius: a panel per dataset, a line per model.

    Args:
        panels: Curves by dataset and model.

    Returns:
        A matplotlib figure.

    >>> figure = certified_curves({"cora": {"gat": [(0.01, 1.0), (0.1, 0.4)]}})
    >>> figure.axes[0].get_title()
    'cora'
    """
    figure, (axes,) = canvas(1, len(panels), sharey=True)
    style = styles(panels, linestyle=DASHES)
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for name, curve in curves.items():
            axis.plot(*zip(*curve, strict=True), marker="o", markersize=3, **style[name])
        axis.set(title=title, xlabel="radius (l1, attention space)", xscale="log", ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of nodes whose\nwhole top 10 is certified")
    for name, line_style in style.items():
        axes[0].plot([], [], label=name, **line_style)
    axes[0].legend(frameon=False)
    return figure
