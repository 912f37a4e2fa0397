"""How a page was made: what a reader needs to reproduce it."""

from __future__ import annotations

from collections.abc import Mapping

from fgai.auditing import AuditReport


def one_or_each(texts: Mapping[str, str], form: str) -> list[str]:
    """The one text that all models have, or the text of each with its name.

    >>> one_or_each({"a": "x", "b": "x"}, "{0} ({1})"), one_or_each({"a": "x", "b": "y"}, "{0} ({1})")
    (['x'], ['x (a)', 'y (b)'])
    """
    same = {*texts.values()}
    return list(same) if len(same) == 1 else [form.format(text, name) for name, text in texts.items()]


def provenance(reports: Mapping[str, AuditReport], about: Mapping[str, str]) -> list[list[str]]:
    """What a reader needs to reproduce the report."""
    first = next(iter(reports.values()))
    attacks = {
        "adversary": {name: _adversary(report) for name, report in reports.items()},
        "gain": {name: report.gain for name, report in reports.items()},
        "seeds": {name: "0" if report.seeds == 1 else f"0 to {report.seeds - 1}" for name, report in reports.items()},
    }
    return [
        ["explanation", first.explanation],
        *([term, text] for term, texts in attacks.items() for text in one_or_each(texts, "{0} ({1})")),
        ["graph", ", ".join(f"{count} {what}" for what, count in first.graph.items())],
        *([name, str(value)] for name, value in about.items()),
        *([name, value] for name, value in first.versions.items()),
    ]


def _adversary(report: AuditReport) -> str:
    """The attack with its budget; the seeds are told apart."""
    budget = (f"{name}={value}" for name, value in report.adversary.items() if name not in ("name", "seed"))
    return ", ".join([str(report.adversary["name"]), *budget])
