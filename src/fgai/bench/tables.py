"""Tables of the finished cells, with the values of the paper and the reasons why ours differ."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fgai.adversaries import THREATS
from fgai.adversaries.gains import ON_EXPLANATIONS
from fgai.bench.plan import Plan, attack_parts
from fgai.bench.results import CellStore, Row
from fgai.registry import Registry


@dataclass(frozen=True)
class Table:
    """A title, a heading, rows of text, and notes."""

    title: str
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


FORMATS: Registry[Callable[[Table], str]] = Registry("table format")


def table_of(plan: Plan, folder: str | Path, *, beside_paper: bool = False) -> Table:
    """Make the table of a plan from the cells in a folder.

    Args:
        plan: The plan.
        folder: The folder of finished cells.
        beside_paper: Whether to add the values of the paper in brackets.

    Returns:
        Mean and deviation over seeds; a dash where no cell has run.
    """
    store, body = CellStore(folder), []
    for dataset, backbone, method in plan.lines():
        rows = [row for cell in plan.cells_of(dataset, backbone, method) for row in store.rows(cell)]
        paper = ((plan.paper or {}).get(backbone, {}).get(method, {}).get(dataset, [])) if beside_paper else []
        cells = [_format_metric(rows, column.metric, column.attack) for column in plan.columns]
        reference = [f" ({value:g})" if value is not None else "" for value in paper] + [""] * len(cells)
        seeds = len({row.seed for row in rows if not row.error})
        numbers = (ours + theirs for ours, theirs in zip(cells, reference, strict=False))
        body.append((dataset, backbone, method, str(seeds), *numbers))
    head = ("dataset", "backbone", "method", "seeds", *(column.heading for column in plan.columns))
    notes = (*(("The paper's values are in brackets.",) if beside_paper else ()), *plan.notes)
    return Table(plan.title, head, tuple(body), notes)


def _format_metric(rows: Sequence[Row], metric: str, attack: str) -> str:
    """Mean and deviation over seeds of a metric or a cost (`seconds`, `peak_mb`).

    >>> rows = [Row("cora", "gat", "at", seed, {"f1": value}) for seed, value in enumerate((0.5, 0.7))]
    >>> _format_metric(rows, "f1", "none")
    '0.600 ± 0.141'
    """
    values = [row.metrics.get(metric, getattr(row, metric, None)) for row in worst_rows(rows, attack)]
    known = [value for value in values if value is not None]
    size = abs(mean(known)) if known else 0.0
    return spread(known, ".1e" if 0 < size < 0.01 else ".0f" if size >= 10 else ".3f")


def worst_rows(rows: Sequence[Row], attack: str) -> list[Row]:
    """The rows of a threat model, one per model. If a submitted attack with its budget is stronger, its row instead.

    The stronger attack has the lower F1 or, if the threat model is about the explanation, the larger g-JSD.

    >>> ours = Row("cora", "gat", "at", 0, {"f1": 0.5}, attack="strongest")
    >>> theirs = Row("cora", "gat", "at", 0, {"f1": 0.4}, attack="mine", settings={"budget": "strongest"})
    >>> [row.attack for row in worst_rows([ours, theirs], "strongest")]
    ['mine']
    """
    metric, sign = ("g_jsd", 1) if decided_by(attack) == "g_jsd" else ("f1", -1)
    worst: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if not row.error and attack in (row.attack, row.settings.get("budget")):
            other = worst.setdefault(row.key[:-1], row)
            if sign * float(row.metrics.get(metric) or 0) > sign * float(other.metrics.get(metric) or 0):
                worst[row.key[:-1]] = row
    return list(worst.values())


def decided_by(attack: str) -> str:
    """The metric by which attacks with the budget of a threat model are compared."""
    name, _ = attack_parts(attack)
    return "g_jsd" if name in THREATS and THREATS[name].gain in ON_EXPLANATIONS else "f1"


def spread(values: Sequence[float], digits: str = ".3f") -> str:
    """Mean and deviation; the value itself if there is one; a dash if there is none.

    >>> spread([0.5, 0.7]), spread([0.5]), spread([])
    ('0.600 ± 0.141', '0.500', '-')
    """
    if not values:
        return "-"
    return f"{mean(values):{digits}}" + (f" ± {stdev(values):{digits}}" if len(values) > 1 else "")


def grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """The lines of a table in Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@FORMATS.register("markdown")
def markdown(table: Table) -> str:
    """A Markdown table, for README files and pages.

    >>> table = Table("Scores", ("dataset", "backbone", "method", "F1"), (("cora", "gat", "at", "0.8 ± 0.1"),))
    >>> print(markdown(table))
    **Scores**
    <BLANKLINE>
    | dataset | backbone | method | F1 |
    | --- | --- | --- | --- |
    | cora | gat | at | 0.8 ± 0.1 |
    <BLANKLINE>
    """
    return (
        f"**{table.title}**\n\n{grid(table.head, table.body)}"
        + "".join(f"\n- {note}" for note in table.notes)
        + "\n" * bool(table.notes)
    )


@FORMATS.register("latex")
def latex(table: Table) -> str:
    r"""LaTeX; needs the package booktabs.

    >>> table = Table("Scores", ("dataset", "backbone", "method", "F1"), (("cora", "gat", "at", "0.8 ± 0.1"),))
    >>> print(latex(table).splitlines()[5])
    cora & gat & at & 0.8 $\pm$ 0.1 \\
    """
    escapes = str.maketrans({"_": r"\_", "%": r"\%", "&": r"\&", "±": r"$\pm$"})
    rows = "".join(" & ".join(part.translate(escapes) for part in line) + " \\\\\n" for line in table.body)
    head = " & ".join(part.translate(escapes) for part in table.head)
    columns = "l" * 3 + "r" * (len(table.head) - 3)
    return (
        f"% {table.title}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head} \\\\\n\\midrule\n{rows}"
        "\\bottomrule\n\\end{tabular}\n" + "".join(f"% {note}\n" for note in table.notes)
    )


@FORMATS.register("csv")
def as_csv(table: Table) -> str:
    """Comma-separated values.

    >>> table = Table("Scores", ("dataset", "backbone", "method", "F1"), (("cora", "gat", "at", "0.8 ± 0.1"),))
    >>> as_csv(table).splitlines()
    ['dataset,backbone,method,F1', 'cora,gat,at,0.8 ± 0.1']
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([table.head, *table.body])
    return out.getvalue()
