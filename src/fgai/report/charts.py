"""The curves of a report, each as a plain record: a title, a shared x, and one series a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fgai.audit import AuditReport
from fgai.certificate import Certificate
from fgai.methods import Epoch

RADII = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.05, 0.1)
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
    across, up = "radius (l1, attention space)", "share of nodes certified"
    x = [float(radius) for radius in next(iter(reports.values())).certified]
    series = [line(name, list(r.certified.values()), group) for group, (name, r) in enumerate(reports.items())]
    about = "Nodes whose whole top 5 no perturbation of this size moves; exact."
    made = [chart("Certified, top 5", about, across, up, x, log="x", series=series)]
    places = {name: group for group, name in enumerate(reports)}
    for k in sorted({proof.k for proof in proofs.values()}):
        these = {name: proof for name, proof in proofs.items() if proof.k == k}
        series = [line(n, [proof.share(r) for r in RADII], places[n]) for n, proof in these.items()]
        about = (
            f"The same for the top {k}, of the certificates ({', '.join(sorted({p.norm for p in these.values()}))})."
        )
        made.append(chart(f"Certified, top {k}", about, across, up, RADII, log="x", series=series))
    return made


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
