"""The curves of a report, each as a plain record: a title, a shared x, and one series a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fgai.audit import AuditReport
from fgai.audit.run import CERTIFIED
from fgai.certificate import Certificate
from fgai.methods import Epoch
from fgai.metrics.stability import TOP

Chart = dict[str, Any]


def chart(title: str, about: str, across: str, up: str, x: Sequence[float], **kind: Any) -> Chart:
    """A chart without series; `log` names the axis that is logarithmic."""
    return {"title": title, "about": about, "across": across, "up": up, "x": x, "log": "", "series": [], **kind}


def line(label: str, y: Sequence[float], group: int, dashed: bool = False) -> dict[str, Any]:
    """One series; those of a `group` share a colour, and dashes tell them apart within it."""
    return {"label": label, "y": y, "group": group, "dashed": dashed}


def curve_charts(reports: Mapping[str, AuditReport]) -> list[Chart]:
    """F+ and F-, clean and attacked."""
    made = []
    for first, name, better in (("most", "F+", "lower"), ("least", "F-", "higher")):
        about = f"Answers still right after deleting the {first} attended edges; {better} is more faithful."
        x = next(iter(reports.values())).curves.shares
        series = []
        for group, (model, report) in enumerate(reports.items()):
            series.append(line(f"{model}, clean", report.curves.clean[first], group))
            series.append(line(f"{model}, attacked", report.curves.attacked[first], group, dashed=True))
        made.append(chart(name, about, "share of edges deleted", "share still right", x, series=series))
    return made


def certified_charts(reports: Mapping[str, AuditReport], proofs: Mapping[str, Certificate]) -> list[Chart]:
    """How many nodes keep their whole top k at a radius, whatever is done to the attention."""
    words = ("radius (attention space)", "share of nodes certified")
    group = {name: place for place, name in enumerate(reports)}
    series = [line(name, _at(report.certified), group[name]) for name, report in reports.items()]
    about = f"Nodes whose whole top {TOP} no perturbation of this l1 size moves; exact."
    made = [chart(f"Certified, top {TOP}", about, *words, CERTIFIED, log="x", series=series)]
    if all(report.guaranteed for report in reports.values()):
        sure = [line(name, _at(report.guaranteed), group[name]) for name, report in reports.items()]
        about = f"The share of a node's top {TOP} that no perturbation of this l1 size moves, mean over nodes; exact."
        made.append(chart("Certified overlap", about, words[0], f"V_{TOP} at least", CERTIFIED, log="x", series=sure))
    for k, norm in sorted({(proof.k, proof.norm) for proof in proofs.values()} - {(TOP, "l1")}):
        these = {name: proof for name, proof in proofs.items() if (proof.k, proof.norm) == (k, norm)}
        series = [line(name, [proof.share(r) for r in CERTIFIED], group[name]) for name, proof in these.items()]
        about = f"The same for the top {k} and {norm}, from the certificates."
        made.append(chart(f"Certified, top {k}", about, *words, CERTIFIED, log="x", series=series))
    return made


def _at(shares: Mapping[str, float]) -> list[float]:
    """The share at each radius that is drawn."""
    return [shares.get(f"{radius:g}", math.nan) for radius in CERTIFIED]


def history_charts(histories: Mapping[str, Sequence[Epoch]]) -> list[Chart]:
    """The terms of the loss by epoch, a chart a model."""
    made = []
    for model, history in histories.items():
        if history:
            terms = history[0].terms
            series = [line(t, [e.terms[t] for e in history], g, dashed=g % 2 == 1) for g, t in enumerate(terms)]
            x = [epoch.number for epoch in history]
            made.append(
                chart(f"Training of {model}", "Terms of the loss.", "epoch", "weighted term", x, log="y", series=series)
            )
    return made
