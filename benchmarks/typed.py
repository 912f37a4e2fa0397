"""Typed graphs: HAN and HGT on IMDB, trained as usual, on normalised features, adversarially and by FGAI.

Writes results/typed.json.

Each model is audited with `TypedInjection`: new directors, linked to movies in both directions. LN is layer
normalisation here: with rows divided by their sums, HGT does not learn (the largest class, after 60 epochs). A cell
(model, seed, method) that has run is not run again.

python benchmarks/typed.py --models han hgt --seeds 3
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HANConv, HGTConv, Linear

import fgai
from fgai import datasets
from fgai.auditing import AuditReport
from fgai.methods import FGAI, AdversarialTraining, LayerNorm, Vanilla
from fgai.seeding import seeded
from resumable import keep, rows_in

OUT = Path("results/typed.json")
ATTACK = fgai.TypedInjection(nodes=40, edges=50, node_type="director")
TRAINING = fgai.TypedInjection(nodes=40, edges=50, steps=3, node_type="director")
EPOCHS, PATIENCE = 60, 20
KEY = ("model", "seed", "method")
METRICS = ("f1", "g_tvd", "overlap", "g_jsd")
Features = Mapping[str, Tensor]
Edges = Mapping[tuple[str, str, str], Tensor]


class HAN(nn.Module):
    """A linear layer per type, two residual layers of HANConv with 8 heads of 8, and a linear layer on the movies.

    Without residual connections, two layers between movies and others lead from movies to movies only.
    """

    def __init__(self, data: HeteroData, hidden: int = 64, heads: int = 8, dropout: float = 0.5) -> None:
        super().__init__()
        self.embed = nn.ModuleDict({name: Linear(data[name].num_features, hidden) for name in data.node_types})
        self.conv1 = HANConv(hidden, hidden, data.metadata(), heads=heads)
        self.conv2 = HANConv(hidden, hidden, data.metadata(), heads=heads)
        self.lin, self.dropout = nn.Linear(hidden, 3), nn.Dropout(dropout)

    def forward(self, x_dict: Features, edge_index_dict: Edges) -> Tensor:
        """Return the logits of the movies."""
        x = {name: self.dropout(self.embed[name](x).relu()) for name, x in x_dict.items()}
        for conv in (self.conv1, self.conv2):
            new = conv(x, edge_index_dict)
            x = {name: x[name] + new[name] for name in x}
        return self.lin(self.dropout(x["movie"]))


class HGT(nn.Module):
    """A linear layer per type, two layers of HGTConv with 4 heads of 8, and a linear layer on the movies."""

    def __init__(self, data: HeteroData, hidden: int = 32, heads: int = 4, dropout: float = 0.5) -> None:
        super().__init__()
        self.embed = nn.ModuleDict({name: Linear(data[name].num_features, hidden) for name in data.node_types})
        self.conv1 = HGTConv(hidden, hidden, data.metadata(), heads)
        self.conv2 = HGTConv(hidden, hidden, data.metadata(), heads)
        self.lin, self.dropout = nn.Linear(hidden, 3), nn.Dropout(dropout)

    def forward(self, x_dict: Features, edge_index_dict: Edges) -> Tensor:
        """Return the logits of the movies."""
        x = {name: self.dropout(self.embed[name](x).relu()) for name, x in x_dict.items()}
        x = self.conv2(self.conv1(x, edge_index_dict), edge_index_dict)
        return self.lin(self.dropout(x["movie"]))


MODELS: Mapping[str, Any] = {"han": HAN, "hgt": HGT}


def build(name: str, data: HeteroData, seed: int) -> nn.Module:
    """Return a new model."""
    with seeded(seed):
        return MODELS[name](data)


def trained(method: str, start: nn.Module, vanilla: nn.Module, data: HeteroData, seed: int) -> nn.Module:
    """Train one model; FGAI starts from the vanilla one."""
    if method == "vanilla":
        return vanilla
    if method == "ln":
        return LayerNorm("layer", epochs=EPOCHS, patience=PATIENCE, seed=seed).fit(start, data).model
    if method == "at":
        return AdversarialTraining(adversary=TRAINING, epochs=EPOCHS, seed=seed).fit(start, data).model
    return FGAI(adversary=TRAINING, epochs=EPOCHS, lr=0.005, seed=seed).fit(vanilla, data).model


def row(report: AuditReport, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of one audit."""
    figures = {f"{name}_clean": round(report.clean[name], 4) for name in METRICS}
    figures |= {f"{name}_attacked": round(report.attacked[name].mean, 4) for name in METRICS}
    known = {name: grade.value for name, grade in report.grades.items()}
    grades = {name: known.get(name) for name in ("used", "faithful", "stable")}  # none of a weak model
    return {**about, **figures, **grades, "answer": report.grades.answer, "settings": repr(report.adversary)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--methods", nargs="+", default=["vanilla", "fgai", "at", "ln"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--reports", type=Path, help="a folder for the audits, from which a page can be made")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data: Any = datasets.compact(datasets.load("imdb"))
    done = {tuple(row[name] for name in KEY) for row in rows_in(OUT)}
    cells: list[tuple[int, str]] = list(product(range(given.seeds), given.models))
    for seed, name in cells:
        methods = [method for method in given.methods if (name, seed, method) not in done]
        if not methods:
            continue
        start = build(name, data, seed)
        vanilla = Vanilla(epochs=EPOCHS, patience=PATIENCE, seed=seed).fit(start, data).model
        for method in methods:
            begin = time.process_time()
            model = trained(method, start, vanilla, data, seed)
            report = fgai.audit(model, data, ATTACK, seeds=3, name=f"{name} {method}")
            about = {"model": name, "seed": seed, "method": method}
            if given.reports:
                report.save(given.reports / f"{name}-{method}-{seed}.json")
            keep(OUT, KEY, [{**row(report, about), "cpu_seconds": round(time.process_time() - begin, 1)}])


if __name__ == "__main__":
    main()
