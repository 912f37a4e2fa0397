"""The rows of one trained model: on the clean graph, and under every attack."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch_geometric.data import Data

from fgai.audit.run import describe
from fgai.audit.trial import calm, measure, under
from fgai.bench.attacks import ATTACKS, Attack
from fgai.bench.rows import Row, peak_mb
from fgai.files import finite
from fgai.metrics import Trial
from fgai.reading import Call, open_reader


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
    attacks: Mapping[str, Attack] = ATTACKS,
) -> Iterator[Row]:
    """One row for the clean graph (`none`), then one per attack, seeded like the model."""
    about = {"dataset": dataset, "backbone": backbone, "method": method, "seed": seed, "data_sha256": sha}
    with open_reader(model, call) as read:
        clean = calm(read, data)
        yield Row(**_figures(clean), peak_mb=peak_mb(), **about)
        for name, attack in attacks.items():
            start = time.perf_counter()
            figures = _figures(under(attack.adversary, attack.gain, clean, seed))
            seconds = time.perf_counter() - start
            settings = {**describe(attack.adversary), "gain": attack.gain, "seed": seed}
            yield Row(**figures, attack=name, seconds=seconds, peak_mb=peak_mb(), settings=settings, **about)


def _figures(trial: Trial) -> dict[str, Any]:
    return finite({"metrics": measure(trial), "curves": trial.curves})
