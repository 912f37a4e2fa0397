"""Tables of the leaderboard: who is best in a cell, who is level, and how sure that is. Used by `pages.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fgai.bench.leaderboard import Entry, Leaderboard
from fgai.bench.tables import grid
from prose import paragraphs

RESULTS = Path(__file__).parent.parent / "results"
COMPARED = (  # threat, column, and what it is called
    ("ensemble", "attacked", "F1 or ROC-AUC under `ensemble`"),
    ("ensemble-explanation", "g_jsd", "g-JSD under `ensemble-explanation`"),
    ("ensemble-explanation", "overlap", "V_5 under `ensemble-explanation`"),
)
MUCH = 0.05  # a loss on the clean graph that belongs beside a win
Cells = dict[tuple[str, str], list[Entry]]


@cache
def board() -> Leaderboard:
    return Leaderboard(RESULTS)


def cells(threat: str, column: str) -> Cells:
    """The compared entries of each dataset and backbone, the best mean first."""
    groups: Cells = defaultdict(list)
    for entry in board().entries:
        if entry.threat == threat and column in entry.standings and entry.standings[column].place != "not compared":
            groups[entry.dataset, entry.backbone].append(entry)
    order = {"winner": 0, "highest": 0, "level": 1, "behind": 2}
    return {cell: sorted(same, key=lambda one: order[one.standings[column].place]) for cell, same in groups.items()}


def leaderboard() -> str:
    """The best mean under the ensemble of attacks, by cell, with those level with it and those behind."""
    body = []
    for (dataset, backbone), same in cells("ensemble", "attacked").items():
        named: dict[str, list[str]] = defaultdict(list)
        for entry in same:
            place = entry.standings["attacked"].place
            named[place].append(f"{entry.method} {entry.value('clean'):.3f} → {entry.value('attacked'):.3f}")
        best = f"**{named['winner'][0]}**" if named["winner"] else named["highest"][0]
        rest = [", ".join(named[place]) or "-" for place in ("level", "behind")]
        body.append([dataset, backbone, str(len(same[0].seeds)), best, *rest])
    return grid(["dataset", "backbone", "seeds", "best mean", "level with it", "behind"], body)


def winners() -> str:
    """How often a winner can be named, and how often each method has the best mean or is level with it."""
    body = []
    for threat, column, name in COMPARED:
        groups = cells(threat, column)
        bests = [same[0] for same in groups.values()]
        won = [entry.method for entry in bests if entry.standings[column].place == "winner"]
        for method in ("vanilla", "ln", "at", "fgai"):
            own = [one for same in groups.values() for one in same if one.method.partition(":")[0] == method]
            places = [entry.standings[column].place for entry in own]
            counts = [won.count(method), sum(entry.method.startswith(method) for entry in bests), places.count("level")]
            behind = places.count("behind")
            body.append([name, str(len(groups)), method, *map(str, [*counts, behind])])
    return grid(["by", "cells", "method", "wins", "has the best mean", "is level with it", "is behind"], body)


def leads() -> str:
    """By how much the best mean is ahead of the next under the ensemble, and the seeds that would decide it."""
    body = []
    for (dataset, backbone), same in cells("ensemble", "attacked").items():
        best, ahead = same[0], same[0].standings["attacked"].ahead
        assert ahead is not None
        rival = next(one.method for one in same[1:] if one.standings["attacked"].ahead == ahead)
        interval = f"{ahead.mean:+.3f} [{ahead.outer_low:+.3f}, {ahead.outer_high:+.3f}]"
        asked = max(ahead.count + 1, ahead.nodes_needed())
        needed = "decided" if ahead.above else "over 100" if asked > 100 else f"about {asked:.0f}"
        body.append([dataset, backbone, best.method, rival, str(ahead.count), interval, needed])
    return grid(["dataset", "backbone", "best mean", "next", "seeds", "lead, 99 %", "seeds that would decide"], body)


def standing_sentence() -> str:
    """How many cells can be decided, in words."""
    groups = cells("ensemble", "attacked")
    best = [same[0] for same in groups.values()]
    won = [entry for entry in best if entry.standings["attacked"].place == "winner"]
    ours = [entry for entry in best if entry.method.startswith("fgai")]
    tied = [same for same in groups.values() if "at" in _tied(same)]
    fell = [same for same in groups.values() if "vanilla" not in _tied(same)]
    sentence = (
        f"Of {len(groups)} pairs of dataset and backbone with two seeds or more, FGAI has the best mean under "
        f"`ensemble` in {len(ours)}. A winner can be named in {len(won)}: {_names(won)}. Adversarial training, which "
        f"gets FGAI's adversary here, has the best mean or is level with it in {len(tied)}. Plain training is behind "
        f"in {len(fell)}."
    )
    return paragraphs(sentence)


def _tied(same: Sequence[Entry]) -> set[str]:
    """The methods with the best mean, or level with it."""
    return {one.method for one in same if one.standings["attacked"].place != "behind"}


def _names(entries: Sequence[Entry]) -> str:
    return " and ".join(f"{_method(entry)} on {entry.dataset} with {entry.backbone}" for entry in entries) or "none"


def _method(entry: Entry) -> str:
    """The name of the method, with its clean value where that is far below vanilla's."""
    clean = {one.model: one.value("clean") for one in board().entries}
    before, after = clean.get((entry.dataset, entry.backbone, "vanilla")), entry.value("clean")
    if before is None or after is None or before - after < MUCH:
        return entry.method
    return f"{entry.method} (clean {after:.3f}, vanilla {before:.3f})"
