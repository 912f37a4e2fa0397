"""The attacks of the bench, and the rows of one trained model under each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch_geometric.data import Data

from fgai.adversaries import THREATS, AttackEnsemble, Threat, describe
from fgai.bench.results import Row, peak_mb
from fgai.calling import Call
from fgai.files import jsonable
from fgai.metrics import measure
from fgai.reading import open_reader
from fgai.trial import Trial, attacked_trial, clean_trial

ATTACKS: Mapping[str, Threat] = {
    "injection-20x20": THREATS["injection-20x20"],
    "injection-20x40": THREATS["injection-20x40"],
    "strongest": Threat(
        "ensemble", AttackEnsemble(nodes=20, edges=(20, 40)), "flips", "The worst of many injections with random links."
    ),
    "explanation": Threat(
        "ensemble",
        AttackEnsemble(nodes=20, edges=(40,), surrogates=("soft-top-k", "top-k-loss", "cross-entropy")),
        "attention-divergence",
        "As strongest, but to move the attention of the last layer as far as possible.",
    ),
}


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
    attacks: Mapping[str, Threat] = ATTACKS,
) -> Iterator[Row]:
    """Yield one row for the clean graph (attack `none`), then one per attack, with the seed of the model."""
    about = {"dataset": dataset, "backbone": backbone, "method": method, "seed": seed, "data_sha256": sha}
    with open_reader(model, call) as read:
        clean = clean_trial(read, data)
        yield Row(**_values(clean), peak_mb=peak_mb(), **about)
        for name, attack in attacks.items():
            start = time.perf_counter()
            values = _values(attacked_trial(attack.adversary, attack.gain, clean, seed))
            seconds = time.perf_counter() - start
            settings = {**describe(attack), "gain": attack.gain, "seed": seed}
            yield Row(**values, attack=name, seconds=seconds, peak_mb=peak_mb(), settings=settings, **about)


def _values(trial: Trial) -> dict[str, Any]:
    """Metrics and deletion curves of a trial, as JSON values."""
    return jsonable({"metrics": measure(trial), "curves": trial.curves})
