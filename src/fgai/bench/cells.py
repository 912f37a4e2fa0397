"""The rows of one trained model: one for the clean graph, and one per threat model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn
from torch_geometric.data import Data

from fgai.adversaries import THREATS, describe
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

    `on_attack` is called with the row and the trial of each other attack.
    """
    about = {"dataset": dataset, "backbone": backbone, "method": method, "seed": seed, "data_sha256": sha}
    with open_reader(model, call) as read:
        clean = clean_trial(read, data)
        for name in attacks:
            if name == "none":
                yield Row(**_values(clean), peak_mb=peak_mb(), **about)
                continue
            attack = THREATS[name]
            start = time.perf_counter()
            trial = attacked_trial(attack.adversary, attack.gain, clean, seed)
            values, seconds = _values(trial), time.perf_counter() - start
            settings = {**describe(attack), "gain": attack.gain, "seed": seed}
            row = Row(**values, attack=name, seconds=seconds, peak_mb=peak_mb(), settings=settings, **about)
            on_attack(row, trial)
            yield row


def _values(trial: Trial) -> dict[str, Any]:
    """Metrics and deletion curves of a trial, as JSON values."""
    return jsonable({"metrics": measure(trial), "curves": trial.curves})
