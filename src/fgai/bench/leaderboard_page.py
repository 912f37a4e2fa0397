"""The page of the leaderboard: which columns it has, what they mean, and what stands behind a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fgai.adversaries import THREATS
from fgai.bench.leaderboard import AUDITED, GROUPS, RANKED, Entry, Leaderboard, command, settings
from fgai.bench.winners import Standing
from fgai.files import atomic_write
from fgai.report.page import Layout, page

FIRST_THREAT = "ensemble"  # what the table shows when the page is opened
LAYOUT = Layout(
    "Leaderboard",
    "board",
    "the table",
    ("uplot-1.6.32",),
    ("dom.js", "theme.js", "charts.js", "sorting.js", "leaderboard.js"),
)


@dataclass(frozen=True)
class Column:
    """A column of the page: its heading, its meaning, and which values are better."""

    title: str
    meaning: str
    better: Literal["higher", "lower", ""] = ""


COLUMNS = {
    "clean": Column("clean", "Micro-F1 on the test nodes, ROC-AUC for links, on the clean graph.", "higher"),
    "attacked": Column("attacked", "The same score under the threat model of the row.", "higher"),
    "lost": Column("lost", "Clean less attacked.", "lower"),
    "g_jsd": Column("g-JSD", "Divergence between the attention before and after the attack, over old edges.", "lower"),
    "overlap": Column("V_5", "Share of a node's five most attended neighbours that the attack leaves there.", "higher"),
    "g_tvd": Column("g-TVD", "Total variation between the predictions before and after the attack.", "lower"),
    "nonuniformity": Column("from uniform", "l1 distance of the clean attention from 1/degree. At 0 it says nothing."),
    "f_slope_plus_clean": Column("F+ slope", "Slope as the most attended edges are deleted; clean graph.", "lower"),
    "f_slope_minus_clean": Column("F- slope", "Slope as the least attended edges are deleted; clean graph.", "higher"),
    "f_slope_plus": Column("F+ slope, attacked", "The same on the attacked graph.", "lower"),
    "f_slope_minus": Column("F- slope, attacked", "The same on the attacked graph.", "higher"),
    "used": Column("used", "Models whose attention is used, of those audited.", "higher"),
    "faithful": Column("faithful", "Models by grade of faithfulness, explanation tree.", "higher"),
    "stable": Column(f"stable, {AUDITED}", f"Models that are stable under {AUDITED}, explanation tree.", "higher"),
    "necessity": Column(
        "most - random", "How much more it hurts to delete the most attended than random edges.", "higher"
    ),
    "against_least": Column("most - least", "The same, against the least attended edges.", "higher"),
    "deletion": Column("most - random or least", "The smaller of most - random and most - least.", "higher"),
    "overlap_tree": Column(f"V_5 of tree, {AUDITED}", f"V_5 of the explanation tree under {AUDITED}.", "higher"),
    "share_0.01": Column(
        "attention certified", "Share of nodes whose top 10 no change of the attention by 0.01 (l1) moves.", "higher"
    ),
    "median_radius": Column("median radius", "Median over nodes of the certified l1 radius of the top 10.", "higher"),
    "votes": Column("proved, 1 link", f"Right and proved against one changed link, by {GROUPS} votes.", "higher"),
    "votes_5": Column("proved, 5 links", f"Right and proved against five changed links, by {GROUPS} votes.", "higher"),
    "deletions": Column("proved, 1 deletion", "Right and proved against one deleted link of the node.", "higher"),
    "injection": Column(
        "proved, 1 injected", "Right and proved against one injected neighbour that resembles the data.", "higher"
    ),
    "seconds": Column("training s", "Seconds of the whole training, one CPU thread of a shared machine.", "lower"),
    "peak_mb": Column("peak MB", "Peak memory of the process; it may have run other cells before.", "lower"),
    "attack_seconds": Column("attack s", "Seconds of the attack."),
}
VIEWS = {
    "Overview": ("clean", "attacked", "overlap", "g_jsd", "faithful", "share_0.01", "seconds"),
    "Prediction": ("clean", "attacked", "lost", "g_tvd"),
    "Stability": ("g_jsd", "overlap", "g_tvd", "nonuniformity"),
    "Deletion slopes": ("f_slope_plus_clean", "f_slope_minus_clean", "f_slope_plus", "f_slope_minus"),
    "Grades": ("used", "faithful", "stable", "necessity", "against_least", "overlap_tree"),
    "Proofs": ("share_0.01", "median_radius", "votes", "votes_5", "deletions", "injection"),
    "Cost": ("seconds", "peak_mb", "attack_seconds"),
}
PLACES = {
    "winner": ("★", "winner: every other method is behind, by the paired 99 % interval over seeds"),
    "highest": ("▲", "best mean, but at least one method is level with it"),
    "level": ("≈", "level with the best mean: the paired 99 % interval of the difference holds 0"),
}
PLOTS = (
    ("Clean against attacked", "On the line an attack costs nothing.", "clean", "attacked", True),
    (
        "Faithful against stable",
        "Audited models: how much more the most attended edges matter, and V_5 under attack.",
        "deletion",
        "overlap_tree",
        False,
    ),
)


def save(path: str | Path, results: str | Path) -> None:
    """Write the page of a folder of results.

    Args:
        path: The file to write.
        results: The folder: `cells/`, `faithful.json`, `certified.json`.

    Example:
        >>> import tempfile
        >>> from fgai.bench import Row, write_rows
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = [Row("cora", "gat", "my-method", 0, {"f1": 0.8}, attack=name) for name in ("none", "ensemble")]
        ...     write_rows(Path(folder) / "cells" / "cora-gat-my-method-0.json", rows)
        ...     save(Path(folder) / "leaderboard.html", folder)
        ...     "my-method" in (Path(folder) / "leaderboard.html").read_text()
        True
    """
    html = page(content(Leaderboard(results)), LAYOUT)
    with atomic_write(Path(path)) as half:
        half.write_text(html, encoding="utf-8")


def content(board: Leaderboard) -> dict[str, Any]:
    """The data of the page.

    >>> content(Leaderboard("no such folder"))["rows"]
    []
    """
    entries, texts = board.entries, _Texts()
    bases = ["vanilla", "ln", "at", "fgai", *sorted({_base(entry) for entry in entries})]
    groups = [name for name in dict.fromkeys(bases) if any(_base(entry) == name for entry in entries)]
    threats = [*dict.fromkeys(name for name in ("none", *THREATS) if any(one.threat == name for one in entries))]
    return {
        "headline": "Leaderboard: attention that is stable, faithful and robust",
        "about": "Every model faces the same budget of a threat model, through its own gradients. Scores are means ± "
        "deviations over seeds. Open a row for its settings, its files and the command that makes it.",
        "filters": [
            _filter("task", "Task", (entry.task for entry in entries)),
            _filter("dataset", "Dataset", (entry.dataset for entry in entries)),
            _filter("backbone", "Backbone", (entry.backbone for entry in entries)),
            _filter("method", "Method", (entry.method for entry in entries)),
            _filter("threat", "Threat model", threats, FIRST_THREAT if FIRST_THREAT in threats else ""),
        ],
        "columns": {name: vars(column) for name, column in COLUMNS.items()},
        "views": VIEWS,
        "places": {name: {"symbol": symbol, "meaning": meaning} for name, (symbol, meaning) in PLACES.items()},
        "plots": [dict(zip(("title", "about", "across", "up", "diagonal"), plot, strict=True)) for plot in PLOTS],
        "groups": groups,
        "rows": [_row(entry, groups, texts, board.folder) for entry in entries],
        "texts": texts.known,
        "threats": [[name, THREATS[name].about] for name in threats if name in THREATS],
        "glossary": {},
        "provenance": [
            ["files in results/", str(len({name for entry in entries for name in entry.files(board.folder)}))],
            ["models", str(len({(*entry.model, seed) for entry in entries for seed in entry.seeds}))],
            ["settings", "As the rows hold them. Version 0.1.0 called the attack `ensemble` by the name `strongest`."],
        ],
    }


class _Texts:
    """Texts by number: many rows share their settings."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self.known)
            self.known.append(text)
        return self._places[text]


def _base(entry: Entry) -> str:
    """The method without its preset."""
    return entry.method.partition(":")[0]


def _filter(name: str, label: str, options: Iterable[str], chosen: str = "") -> dict[str, Any]:
    return {"name": name, "label": label, "options": [*dict.fromkeys(options)], "chosen": chosen}


def _row(entry: Entry, groups: list[str], texts: _Texts, folder: Path) -> dict[str, Any]:
    places = {name: standing.place for name, standing in entry.standings.items()}
    known = [name for name in COLUMNS if entry.numbers.get(name)]
    return {
        "task": entry.task,
        "dataset": entry.dataset,
        "backbone": entry.backbone,
        "method": entry.method,
        "threat": entry.threat,
        "seeds": len(entry.seeds),
        "warning": entry.warning,
        "group": groups.index(_base(entry)),
        "values": {name: [_short(entry.value(name)), entry.text(name), places.get(name, "")] for name in known},
        "details": [[name, texts.place(text)] for name, text in _details(entry, folder) if text],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _details(entry: Entry, folder: Path) -> list[tuple[str, str]]:
    """What a reader needs to check a row."""
    clean = [row for row in entry.rows if row.attack == "none"]
    attacked = [row for row in entry.rows if row.attack != "none"]
    scores = entry.numbers.get("attacked", {})
    return [
        ("warning", entry.warning),
        ("command", command(entry)),
        ("seeds", ", ".join(map(str, entry.seeds))),
        ("attacked, by seed", ", ".join(f"{scores[seed]:.4f}" for seed in sorted(scores))),
        *((f"place by {COLUMNS[name].title}", _sentence(entry.standings.get(name))) for name in RANKED),
        ("settings of the method", settings(clean) if clean else ""),
        ("settings of the attack", settings(attacked) if attacked else ""),
        ("versions", ", ".join(f"{name} {text}" for name, text in sorted(clean[0].versions.items())) if clean else ""),
        ("SHA-256 of the data", ", ".join(sorted({row.data_sha256[:12] for row in clean}))),
        ("files in results/", ", ".join(entry.files(folder))),
    ]


def _sentence(standing: Standing | None) -> str:
    """A place with the interval that decided it."""
    if standing is None or standing.ahead is None:
        return ""
    ahead = standing.ahead
    interval = f"{ahead.mean:.2g} [{ahead.outer_low:.2g}, {ahead.outer_high:.2g}]"
    whose = "ahead of the next by" if standing.place in ("winner", "highest") else "the best mean is ahead by"
    return f"{standing.place}; {whose} {interval} (99 %, {ahead.count} seeds)"
