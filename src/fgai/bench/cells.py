"""The rows of one trained model: one for the clean graph, and one per attack: a threat model and an explanation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch_geometric.data import Data

from fgai.adversaries import THREATS, Threat, as_threat, describe
from fgai.bench.plan import attack_parts
from fgai.bench.results import Row, peak_mb
from fgai.calling import Call
from fgai.files import jsonable
from fgai.metrics import measure
from fgai.reading import open_reader
from fgai.trial import Trial, attacked_trial, clean_trial


def row_per_attack(
    model: nn.Module,
    data: Data,
    *,
    dataset: str,
    backbone: str,
    method: str,
    seed: int,
    sha: str,
    call: Call | None = None,
    attacks: Sequence[str],
    on_attack: Callable[[Row, Trial], None] = lambda row, trial: None,
) -> Iterator[Row]:
    """Yield one row per attack, with the seed of the model; the attack `none` is the clean graph.

    Metrics are about the attention of the last layer, or about the explanation that an attack names, such as
    `explanation:tree`. `on_attack` is called with the row and the trial of each attack but `none`.
    """
    about = {"dataset": dataset, "backbone": backbone, "method": method, "seed": seed, "data_sha256": sha}
    with open_reader(model, call) as read:
        clean = clean_trial(read, data)
        trials = {"last": clean}  # of the clean graph, by explanation: attacks share what they cache
        for name in attacks:
            if name == "none":
                yield Row(**_values(clean), peak_mb=peak_mb(), **about)
                continue
            attack, explanation = threat_of(name)
            start = time.perf_counter()
            before = trials.setdefault(explanation, replace(clean, explanation=explanation))
            trial = attacked_trial(attack.adversary, attack.gain, before, seed)
            values, seconds = _values(trial), time.perf_counter() - start
            settings = {**describe(attack), "gain": attack.gain, "seed": seed}
            found_by = getattr(trial.now, "found_by", "")
            cost = {"seconds": seconds, "peak_mb": peak_mb()}
            row = Row(**values, attack=name, found_by=found_by, settings=settings, **cost, **about)
            on_attack(row, trial)
            yield row


def threat_of(attack: str) -> tuple[Threat, str]:
    """The threat model and the explanation that an attack of a plan names; without a name, it is the last layer's.

    >>> threat, explanation = threat_of("explanation:tree")
    >>> threat.gain, explanation
    ('attention-divergence:tree', 'tree')
    """
    name, explanation = attack_parts(attack)
    return (as_threat(name, explanation=explanation), explanation) if explanation else (THREATS[name], "last")


def _values(trial: Trial) -> dict[str, Any]:
    """Metrics and deletion curves of a trial, as JSON values."""
    return jsonable({"metrics": measure(trial), "curves": trial.curves})
