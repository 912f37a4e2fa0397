"""The first screen of the page: the headline, the lights of the grades, the bars, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fgai.auditing import AuditReport
from fgai.grades import GRADES, Grade
from fgai.metrics.explanation import TOP

HEADLINE_NAME = 40  # characters of a model's name in the headline
HEADLINE_MODELS = 3  # models in the headline
INJECTING = (
    "node-injection",
    "graph-injection",
    "chosen-injection",
    "attack-ensemble",
    "single-target",
)  # adversaries that add nodes
CHANGING = {"edge-rewiring": ("added", "dropped"), "prbcd": ("flips",), "grbcd": ("flips",)}  # that change links
SYMBOLS = {"good": "✓", "bad": "✗", "unsure": "?"}
BARS = {"f1": ("F1", "F1"), "overlap": (f"Top {TOP} kept", f"V_{TOP}")}  # label and term in the glossary


def headline(reports: Mapping[str, AuditReport]) -> str:
    """One sentence for a reader who knows nothing of the method: what each model loses to the attack.

    F1 is lost in points, 100 (clean - attacked); explanations are kept as V_5 says.
    """
    attacks = [{**report.adversary, "seed": 0} for report in reports.values()]
    graphs = any("graphs" in report.graph for report in reports.values())
    attack = phrase(attacks[0], graphs) if all(one == attacks[0] for one in attacks) else "its attack"
    named = list(reports.items())
    clauses = [_clause(cut(name), report, attack, not place) for place, (name, report) in enumerate(named)]
    more = len(clauses) - HEADLINE_MODELS
    return "; ".join(clauses[:HEADLINE_MODELS]) + (f"; {more} more below" if more > 0 else "")


def _clause(name: str, report: AuditReport, attack: str, first: bool) -> str:
    """What one model loses and keeps; the first clause names the units and the attack."""
    if not report.grades.items():
        return f"{name} is too weak to be graded: its F1 is {report.clean['f1']:.3f}"
    lost, kept_share = (
        _points(report.clean["f1"] - report.attacked["f1"].mean),
        _percent(report.attacked["overlap"].mean),
    )
    if first:
        loses = f"{lost} points of F1" if lost else "no F1"
        return f"{name} loses {loses} to {attack} and keeps {kept_share} of its explanations"
    return f"{name} loses {lost or 'none'} and keeps {kept_share}"


def phrase(adversary: Mapping[str, Any], graphs: bool = False) -> str:
    """An attack in words that need no explanation; the budget of an injection into a batch is for each of its graphs.

    >>> phrase({"name": "node-injection", "nodes": 20}), phrase({"name": "feature-ball", "radius": 0.1})
    ('20 fake nodes', 'this attack')
    >>> phrase({"name": "graph-injection", "nodes": 1}, graphs=True)
    '1 fake node in each graph'
    """
    name = adversary["name"]
    fields = ("nodes",) if name in INJECTING else CHANGING.get(name, ())
    counts = [adversary.get(part) for part in fields]
    total = sum(count for count in counts if isinstance(count, int))
    if not counts or total < 1:
        return "this attack"
    what = "fake node" if name in INJECTING else "changed link"
    return f"{total:,} {what}{'s' * (total != 1)}{' in each graph' * (graphs and name in INJECTING)}"


def _points(loss: float) -> str:
    """A loss of F1 in points, empty if it rounds to none.

    >>> _points(0.4649), _points(0.0042), _points(-0.01)
    ('46', '0.4', '')
    """
    value = 100 * loss
    return "" if value < 0.05 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _percent(share: float) -> str:
    r"""A share in percent that is only 100 or 0 if it is exactly so.

    >>> [_percent(share).replace("\xa0", " ") for share in (0.981, 0.9999, 1.0)]
    ['98 %', 'more than 99 %', '100 %']
    """
    if 0.995 <= share < 1:
        return f"more than {_percent(0.99)}"
    if 0 < share < 0.005:
        return f"less than {_percent(0.01)}"
    return f"{100 * share:.0f}\u00a0%"  # no line break before the sign


def cut(name: str, length: int = HEADLINE_NAME) -> str:
    """The name, or its start and an ellipsis.

    >>> cut("a long name", 6)
    'a lon…'
    """
    return name if len(name) <= length else f"{name[: length - 1]}…"


def setting(report: AuditReport) -> str:
    """The graph or the graphs, the attack and the explanation in one line."""
    times = "once" if report.seeds == 1 else f"{report.seeds} times"
    graphs = report.graph.get("graphs", 0)
    what = f"{graphs:,} graphs with" if graphs else "A graph of"
    return (
        f"{what} {report.graph['nodes']:,} nodes and {report.graph['edges']:,} edges, attacked {times} by "
        f"{report.attack} ({phrase(report.adversary, graphs > 0)}). The explanation is “{report.explanation}”."
    )


def model_card(name: str, report: AuditReport) -> dict[str, Any]:
    """The answer for one model: three lights with their reasons, and two pairs of bars."""
    answer = report.grades.answer
    return {
        "model": name,
        "answer": answer,
        "tone": {"yes": "good", "no": "bad"}.get(answer, "unsure"),
        "line": report.answer,
        "lights": [_light(grade, getattr(report.grades, grade)) for grade in GRADES],
        "bars": [
            {"label": label, "term": term, "before": report.clean[metric], "after": report.attacked[metric].mean}
            for metric, (label, term) in BARS.items()
        ],
        "notes": report.notes,
        "proved": report.proved,
    }


def _light(name: str, grade: Grade | None) -> dict[str, str]:
    """The colour, the symbol, the word and the sentence of a grade; None is a model that was too weak."""
    if grade is None:
        return {"name": name, "value": "not graded", "tone": "unsure", "symbol": SYMBOLS["unsure"], "sentence": ""}
    tone = "good" if grade.holds else "unsure" if grade.value == "unknown" else "bad"
    return {"name": name, "value": grade.value, "tone": tone, "symbol": SYMBOLS[tone], "sentence": grade.sentence}


def next_steps(reports: Mapping[str, AuditReport]) -> list[dict[str, str]]:
    """What to do next, by the grades; text between backticks is code."""
    steps = [{"model": name, "text": text} for name, report in reports.items() for text in _steps(report)]
    first, *others = reports.items()
    better = [name for name, report in others if report.grades.answer == "yes" and first[1].grades.answer != "yes"]
    if better:
        steps.insert(0, {"model": better[0], "text": f"All three grades hold. Use it in place of {cut(first[0])}."})
    return steps


def _steps(report: AuditReport) -> list[str]:
    """What to do about the grades of one model."""
    grades = report.grades
    if not grades.items():
        return ["The model is too weak. Train it longer, or check the labels and the features; then audit it again."]
    values = {name: grade.value for name, grade in grades.items()}
    others = ("leave-one-out", "tree") if "graphs" not in report.graph else ("tree", "last")
    other = next(name for name in others if name != report.explanation)
    items = "graphs" if "graphs" in report.graph else "nodes"
    texts = {
        (
            "used",
            "no",
        ): "It does not show what the model learned; the sentence beside the light says why. Audit another "
        f"explanation: `fgai audit FOLDER --explanation {other}`.",
        ("faithful", "contradicted"): "Do not show this explanation as a reason. Audit another one: "
        f"`fgai audit FOLDER --explanation {other}`.",
        (
            "faithful",
            "unknown",
        ): f"The test of faithfulness needs more {items}: audit with a larger `--sample` or "
        "`data.test_mask`. The sentence beside the light says how many would decide.",
        ("stable", "no"): "Re-train it against the attack, then compare both: `fgai fit FOLDER --out NEW` and "
        "`fgai report FOLDER NEW`; in Python, `fgai.FGAI().fit(model, data)`.",
        ("stable", "unknown"): "This attack does not decide it; the sentence beside the light says why. Audit with "
        "another one: `fgai audit FOLDER --threat realistic`.",
    }
    steps = [text for (name, value), text in texts.items() if values.get(name) == value]
    if grades.answer == "yes":
        steps.append("Try a stronger attack, `fgai audit FOLDER --threat strongest`, and prove what can be proved, "
                     "`fgai certify FOLDER`.")  # fmt: skip
    if report.seeds == 1:
        steps.append("This is one attack. Five give an interval: `fgai audit FOLDER --seeds 5`.")
    return steps
