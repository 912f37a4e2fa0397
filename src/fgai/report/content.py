"""The content of the HTML page as plain data: audits, certificates and training histories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fgai.auditing import AuditReport, Comparison
from fgai.auditing.audit import CERTIFIED
from fgai.certificates import Certificate, Proof
from fgai.errors import SettingError
from fgai.files import jsonable
from fgai.methods import Epoch
from fgai.metrics import METRICS
from fgai.metrics.explanation import TOP
from fgai.report.glossary import DESCRIBING, GLOSSARY, METRIC_TERMS
from fgai.report.provenance import one_or_each, provenance
from fgai.report.summary import cut, headline, model_card, next_steps, setting

Chart = dict[str, Any]
T = TypeVar("T")


def chart(title: str, about: str, across: str, up: str, x: Sequence[float], **kind: Any) -> Chart:
    """A chart without series; `log` names the axis that is logarithmic."""
    return {"title": title, "about": about, "across": across, "up": up, "x": x, "log": "", "series": [], **kind}


def line(label: str, y: Sequence[float], group: int, dashed: bool = False) -> dict[str, Any]:
    """One series. The series of a `group` share a colour and differ in their dashes."""
    return {"label": label, "y": y, "group": group, "dashed": dashed}


def curve_charts(reports: Mapping[str, AuditReport]) -> list[Chart]:
    """F+ and F-, clean and attacked."""
    charts = []
    for first, name, better in (("most", "F+", "lower"), ("least", "F-", "higher")):
        about = f"Answers still right after deleting the {first} attended edges; {better} is more faithful."
        x = next(iter(reports.values())).curves.shares
        series = []
        for group, (model, report) in enumerate(reports.items()):
            series.append(line(f"{model}, clean", report.curves.clean[first], group))
            series.append(line(f"{model}, attacked", report.curves.attacked[first], group, dashed=True))
        charts.append(chart(name, about, "share of edges deleted", "share still right", x, series=series))
    return charts


def certified_charts(reports: Mapping[str, AuditReport], proofs: Mapping[str, Certificate]) -> list[Chart]:
    """The share of nodes whose whole top k is certified, by radius."""
    axes = ("radius (attention space)", "share of nodes certified")
    group = {name: place for place, name in enumerate(reports)}
    series = [line(name, _values_at_radii(report.certified), group[name]) for name, report in reports.items()]
    about = f"Nodes whose whole top {TOP} no perturbation of this l1 size moves; exact."
    charts = [chart(f"Certified, top {TOP}", about, *axes, CERTIFIED, log="x", series=series)]
    if all(report.guaranteed for report in reports.values()):
        bounds = [line(name, _values_at_radii(report.guaranteed), group[name]) for name, report in reports.items()]
        about = f"The share of a node's top {TOP} that no perturbation of this l1 size moves, mean over nodes; exact."
        charts.append(
            chart("Certified overlap", about, axes[0], f"V_{TOP} at least", CERTIFIED, log="x", series=bounds)
        )
    for k, norm in sorted({(proof.k, proof.norm) for proof in proofs.values()} - {(TOP, "l1")}):
        selected = {name: proof for name, proof in proofs.items() if (proof.k, proof.norm) == (k, norm)}
        series = [line(name, [proof.share(r) for r in CERTIFIED], group[name]) for name, proof in selected.items()]
        about = f"The same for the top {k} and {norm}, from the certificates."
        charts.append(chart(f"Certified, top {k}", about, *axes, CERTIFIED, log="x", series=series))
    return charts


def proof_charts(models: Sequence[str], proofs: Mapping[str, Proof]) -> list[Chart]:
    """The share certified and right over the budget of an attacker, one chart for each attacker."""
    charts = []
    for kind in dict.fromkeys(type(proof.against) for proof in proofs.values()):
        named = {name: proof for name, proof in proofs.items() if type(proof.against) is kind}
        x = sorted({row["budget"] or 0 for proof in named.values() for row in proof.curve()})
        series = []
        for name, proof in named.items():
            group, curve = models.index(name), proof.curve(x)
            series.append(line(f"{name}, certified and right", _shares_of(curve, "certified_and_right"), group))
            series.append(line(f"{name}, without links", _shares_of(curve, "without_links"), group, dashed=True))
        about = " ".join(f"{name}: {proof.sentence()}" for name, proof in named.items())
        charts.append(chart(f"Certified against {kind.__name__}", about, "budget", "share of items", x, series=series))
    return charts


def _shares_of(curve: Sequence[Mapping[str, float | None]], name: str) -> list[float]:
    return [math.nan if (share := row[name]) is None else share for row in curve]


def _values_at_radii(shares: Mapping[str, float]) -> list[float]:
    """The share at each radius of the chart."""
    return [shares.get(f"{radius:g}", math.nan) for radius in CERTIFIED]


def history_charts(histories: Mapping[str, Sequence[Epoch]]) -> list[Chart]:
    """The terms of the loss by epoch, one chart per model."""
    charts = []
    for model, history in histories.items():
        if history:
            terms = history[0].terms
            series = [line(t, [e.terms[t] for e in history], g, dashed=g % 2 == 1) for g, t in enumerate(terms)]
            x = [epoch.number for epoch in history]
            charts.append(
                chart(f"Training of {model}", "Terms of the loss.", "epoch", "weighted term", x, log="y", series=series)
            )
    return charts


SAME = 5e-7  # a change below it is none
MODEL_LENGTH = 100  # maximum characters of the name of a model
TEXT_LENGTH = 300  # maximum characters of a text on the page
Histories = Mapping[str, Sequence[Epoch]]


def content(
    result: AuditReport | Comparison,
    certificates: Mapping[str, Certificate] | None = None,
    histories: Histories | None = None,
    about: Mapping[str, str] | None = None,
    proofs: Mapping[str, Proof] | None = None,
) -> dict[str, Any]:
    """Collect everything that the page shows.

    Args:
        result: An audit or a comparison.
        certificates: Certificates by the names of the models.
        histories: Training histories by the names of the models.
        about: More lines of the provenance table, such as the data and the command.
        proofs: Proofs against one attacker by the names of the models.

    Returns:
        Values that JSON can hold.
    """
    comparison = result if isinstance(result, Comparison) else Comparison({result.model: result})
    if unknown := sorted({*(certificates or {}), *(histories or {}), *(proofs or {})} - {*comparison.reports}):
        names = list(comparison.reports)
        raise SettingError(f"certificates, proofs or histories name {unknown}, and the models are called {names}")
    labels = _labels(comparison.reports)
    comparison = Comparison(_renamed(comparison.reports, labels), _renamed(comparison.agreement, labels))
    reports, certified, trainings = comparison.reports, _renamed(certificates, labels), _renamed(histories, labels)
    first = next(iter(reports.values()))
    if others := [name for name, report in reports.items() if _about(report) != _about(first)]:
        raise SettingError(
            f"{', '.join(others)}: another graph or explanation than {next(iter(reports))}; a page compares models on "
            "one graph, as `fgai.compare` does"
        )
    values = {
        "title": " and ".join(reports),
        "headline": headline(reports),
        "setting": " ".join(one_or_each({name: setting(report) for name, report in reports.items()}, "{1}: {0}")),
        "models": list(reports),
        "class_names": first.class_names,
        "nodes": first.graph["nodes"],
        "explanation": first.explanation,
        "cards": [model_card(name, report) for name, report in reports.items()],
        "first_node": _first_node(first),
        "next": next_steps(reports),
        "glossary": GLOSSARY,
        "tables": [_properties(comparison, certified), _metrics(reports)],
        "charts": [
            *curve_charts(reports),
            *certified_charts(reports, certified),
            *proof_charts(list(reports), _renamed(proofs, labels)),
            *history_charts(trainings),
        ],
        "moved": {name: [vars(row) for row in report.moved] for name, report in reports.items()},
        "views": {name: _drawn_views(report) for name, report in reports.items()},
        "graphs": {name: {str(v.graph): vars(v) for v in report.graph_views} for name, report in reports.items()},
        "first_graph": next((view.graph for view in first.graph_views), None),
        "proved": node_proofs(reports, _renamed(proofs, labels)),
        "types": (types := {node: kind for report in reports.values() for node, kind in report.types.items()}),
        "kinds": list(dict.fromkeys(types.values())),
        "names": {node: name for report in reports.values() for node, name in report.names.items()},
        "provenance": provenance(reports, about or {}),
    }
    return clip_texts(jsonable(values))


def node_proofs(reports: Mapping[str, AuditReport], proofs: Mapping[str, Proof]) -> dict[str, dict[str, str]]:
    """What is proved about each node with a view, as a sentence, by model and node."""
    of_nodes = {name: proof for name, proof in proofs.items() if len(proof.budget) == reports[name].graph["nodes"]}
    return {
        name: {str(view.node): proof.item_sentence(view.node) for view in reports[name].views}
        for name, proof in of_nodes.items()
    }


def _labels(names: Iterable[str]) -> dict[str, str]:
    """The names of the models, cut where they are long, and still different.

    >>> list(_labels(["m" * 200, "m" * 201]).values())[1][-5:]
    'm…(2)'
    """
    labels: dict[str, str] = {}
    for place, name in enumerate(names, 1):
        label = cut(name, MODEL_LENGTH)
        labels[name] = label if label not in labels.values() else f"{label}({place})"
    return labels


def _renamed(values: Mapping[str, T] | None, labels: Mapping[str, str]) -> dict[str, T]:
    return {labels[name]: value for name, value in (values or {}).items()}


def _drawn_views(report: AuditReport) -> dict[str, dict[str, Any]]:
    """The neighbourhoods by node; none if the page draws whole graphs."""
    return {} if report.graph_views else {str(view.node): vars(view) for view in report.views}


def _first_node(report: AuditReport) -> int | None:
    """The node to show first: of those with a view, the one that changed most."""
    views = {view.node: view for view in report.views}
    ranked = [row.node for row in report.moved if row.node in views]
    by_loss = sorted(views, key=lambda node: (len({*views[node].top_before} & {*views[node].top_after}), node))
    return next(iter([*ranked, *by_loss]), None)


def clip_texts(value: Any) -> Any:
    """Shorten all texts to `TEXT_LENGTH` characters: a page repeats names hundreds of times.

    >>> len(clip_texts(["a" * 2_000])[0])
    300
    """
    if isinstance(value, dict):
        return {clip_texts(name): clip_texts(part) for name, part in value.items()}
    if isinstance(value, list):
        return [clip_texts(part) for part in value]
    return value if not isinstance(value, str) or len(value) <= TEXT_LENGTH else f"{value[: TEXT_LENGTH - 1]}…"


def _properties(comparison: Comparison, proofs: Mapping[str, Certificate]) -> dict[str, Any]:
    """The four properties of a faithful explanation for all models: clean, attacked and proved."""
    first = next(iter(comparison.reports))
    rows: list[list[Any]] = []
    if len(comparison.reports) > 1 and comparison.agreement:
        similar, close = (_agreement(comparison, proofs, name) for name in ("similarity", "closeness"))
        rows.append(["similarity", f"the explanation is still that of {first}: V_5", *similar])
        rows.append(["closeness", f"the predictions are still those of {first}: TVD", *close])
    rows.append(["explanation", "it survives the attack: V_5", *_survival(comparison, proofs, "overlap", "beta2")])
    rows.append(["prediction", "it survives the attack: TVD", *_survival(comparison, proofs, "g_tvd", "alpha2")])
    heads = [
        f"{name}, {when}"
        for name in comparison.reports
        for when in ("clean", "attacked", *([_scope(proofs[name])] if name in proofs else []))
    ]
    return {"title": "The four properties", "head": ["property", "what it says", *heads], "rows": rows}


def _agreement(comparison: Comparison, proofs: Mapping[str, Certificate], name: str) -> list[Any]:
    """Cells of a property that is measured on the clean graph only."""
    cells = []
    for model, like in comparison.agreement.items():
        cells += [getattr(like, name), *[None] * (2 if model in proofs else 1)]
    return cells


def _survival(comparison: Comparison, proofs: Mapping[str, Certificate], metric: str, number: str) -> list[Any]:
    cells = []
    for name, report in comparison.reports.items():
        cells += [report.clean[metric], report.attacked[metric].mean]
        cells += [getattr(proofs[name], number).mean] if name in proofs else []
    return cells


def _scope(proof: Certificate) -> str:
    return f"proved (top {proof.k}, attention pushed by {proof.radius:g})"


def _metrics(reports: Mapping[str, AuditReport]) -> dict[str, Any]:
    """All metrics of all models, clean and attacked, and the change. Metrics of the released code are left out."""
    rows = []
    named = (name for name in METRICS if all(name in report.attacked for report in reports.values()))
    for metric in (name for name in named if not name.endswith("_released")):
        term = METRIC_TERMS.get(metric, metric)
        row: list[Any] = [{"text": term, "tip": GLOSSARY.get(term, METRICS.about(metric))}]
        for report in reports.values():
            value = report.attacked[metric]
            spread = f" [{value.low:.4g}, {value.high:.4g}]" if report.seeds > 1 else ""
            row += [
                report.clean[metric],
                f"{value.mean:.4g}{spread}",
                change(metric, value.mean - report.clean[metric]),
            ]
        rows.append(row)
    several = any(report.seeds > 1 for report in reports.values())
    heads = ["clean", "attacked: mean [95 %]" if several else "attacked", "change"]
    return {"title": "Every metric", "head": ["metric", *(f"{m}, {h}" for m in reports for h in heads)], "rows": rows}


def _about(report: AuditReport) -> tuple[Any, ...]:
    """What the reports of one page share."""
    return report.graph, report.explanation, report.class_names


def change(metric: str, difference: float) -> dict[str, str]:
    """A change under attack as text, with its tone: `better`, `worse` or neither.

    >>> change("f1", -0.25), change("nonuniformity", 0.1)
    ({'text': '▼ 0.25 worse', 'tone': 'worse'}, {'text': '▲ 0.1', 'tone': ''})
    """
    if math.isnan(difference) or abs(difference) < SAME:
        return {"text": "unknown" if math.isnan(difference) else "none", "tone": ""}
    rises = difference > 0
    tone = "" if metric in DESCRIBING else "better" if rises == (METRICS[metric].better == "higher") else "worse"
    return {"text": f"{'▲' if rises else '▼'} {abs(difference):.3g} {tone}".strip(), "tone": tone}
