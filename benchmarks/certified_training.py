"""Certified training of FGAI, with attempts to keep the attention sharp: results/certified_training.json.

    python benchmarks/certified_training.py --models DIR --only cora

Each trial re-trains the same vanilla GAT against one injected node that looks like a real one. All figures are of
validation nodes. A trial with a row in the file is not run again.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn
from torch_geometric.data import Data

from certified import real_looking
from fgai import datasets
from fgai.adversaries import THREATS, gains
from fgai.attention import nonuniformity
from fgai.bench.models import ModelStore
from fgai.bench.plan import Cell
from fgai.certificates import Injection, certify
from fgai.faithfulness import measure_faithfulness
from fgai.methods import FGAI
from fgai.methods.certified import WorstCase
from fgai.metrics import measure
from fgai.modes import eval_mode
from fgai.progress import progress
from fgai.reading import open_reader, read, training_reader
from fgai.trial import attacked_trial, clean_trial
from resumable import keep, rows_in

RESULTS = Path("results/certified_training.json")
KEY = ("dataset", "trial", "seed")
INJECTED = (1, 2, 5)
EPOCHS, LR = 200, 0.01


@dataclass(frozen=True)
class Sharp:
    """Certified training that also asks for attention at an l1 distance of at least `least` from 1/degree."""

    least: float

    def fit(self, model: nn.Module, data: Data, injection: Injection) -> nn.Module:
        """Re-train a copy of the model: closeness, the certified loss and the distance, each with weight 1."""
        loss, vanilla, model = WorstCase.of(model, data, injection), read(model, data).detach(), copy.deepcopy(model)
        optimizer = torch.optim.Adam(model.parameters(), LR)
        with eval_mode(model), training_reader(model) as reader, progress("Sharp", EPOCHS) as advance:
            for epoch in range(EPOCHS):
                clean = reader(data)
                lacking = (self.least - nonuniformity(clean.explanation.mean_heads())).clamp(min=0)
                total = gains.kl(vanilla)(clean) + loss.loss(model, epoch / EPOCHS) + lacking.mean()
                optimizer.zero_grad()
                total.backward()
                optimizer.step()
                advance("")
        return model


TRIALS: dict[str, Any] = {
    "vanilla": None,
    "FGAI": FGAI(),
    "certified alone": FGAI.preset("certified"),
    "certified alone, sharp 0.5": Sharp(0.5),
    "certified alone, support": FGAI.preset("certified", **FGAI.presets["support"]),
    "FGAI, certified 5": FGAI(certified=5.0),
    "FGAI, certified 20": FGAI(certified=20.0),
}


def fitted(trial: Any, model: nn.Module, data: Data, injection: Injection, seed: int) -> nn.Module:
    """The model of a trial."""
    if trial is None:
        return model
    if isinstance(trial, Sharp):
        return trial.fit(model, data, injection)
    return replace(trial, injection=injection, seed=seed).fit(model, data).model


def row(model: nn.Module, data: Data, seed: int) -> dict[str, Any]:
    """The figures of one model on the nodes in `test_mask`."""
    proof = certify(model, data, against=real_looking(data, max(INJECTED)))
    values: dict[str, Any] = {"f1": proof.shares(1)["plain"]}
    values |= {f"certified_and_right {m}": proof.shares(m)["certified_and_right"] for m in INJECTED}
    tested = measure_faithfulness(model, data, "last")
    values |= {"last_faithful": tested.grade.value, "last_necessity": tested.necessity.mean}
    with open_reader(model) as reader:
        clean = clean_trial(reader, data)
        values["nonuniformity"] = measure(clean)["nonuniformity"]
        for name in ("injection-20x20", "realistic"):
            attacked = measure(attacked_trial(THREATS[name].adversary, THREATS[name].gain, clean, seed))
            values |= {f"f1 {name}": attacked["f1"], f"overlap {name}": attacked["overlap"]}
    return {key: round(value, 5) if isinstance(value, float) else value for key, value in values.items()}


def main(
    models: Annotated[Path, typer.Option(help="A folder of saved models.")] = Path("models"),
    only: Annotated[str, typer.Option(help="Datasets whose names contain this.")] = "",
    seeds: Annotated[int, typer.Option(help="Seeds of each dataset.")] = 1,
) -> None:
    """Run the trials that have no row yet."""
    torch.set_num_threads(1)
    asked = [
        (dataset, name, seed)
        for dataset in ("cora", "amazon-photo")
        for seed in range(seeds)
        for name in TRIALS
        if only in dataset
    ]
    with progress("certified training", len(asked)) as advance:
        for dataset, name, seed in asked:
            if [dataset, name, seed] not in ([one[key] for key in KEY] for one in rows_in(RESULTS)):
                data = datasets.compact(datasets.load(dataset, seed=seed))
                vanilla = ModelStore(models).trained(Cell(dataset, "gat", "vanilla", seed), data).model
                model = fitted(TRIALS[name], vanilla, data, real_looking(data, 1), seed)
                data.test_mask = data.val_mask
                keep(RESULTS, KEY, [{"dataset": dataset, "trial": name, "seed": seed, **row(model, data, seed)}])
            advance(f"{dataset} {name}")


if __name__ == "__main__":
    typer.run(main)
