"""What layer norms change under `strongest`: results/layer_norms.json.

The graph transformer with and without its layer norms and its skip connections, and GAT with layer norms, on Cora. A
model with a row in the file is not run again.

python benchmarks/layer_norms.py --seed 0
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import typer
from torch import Tensor, nn
from torch_geometric.nn import GATConv, TransformerConv

from fgai import datasets
from fgai.adversaries import THREATS
from fgai.backbones.base import dropout
from fgai.backbones.gt import GT
from fgai.graph import require
from fgai.methods import FGAI, Vanilla
from fgai.metrics import measure
from fgai.reading import open_reader
from fgai.seeding import seeded
from fgai.trial import attacked_trial, clean_trial
from resumable import keep, rows_in

RESULTS = Path("results/layer_norms.json")
ATTACKS = ("strongest", "realistic")


class PartialGT(GT):
    """The graph transformer, with or without its layer norms and its skip connections."""

    def __init__(self, features: int, classes: int, *, norms: bool, skips: bool) -> None:
        super().__init__(features, classes)
        self.skips = skips
        if not norms:
            for name in ("norm1", "norm2", "norm3"):
                self.set_submodule(name, nn.Identity())
        if not skips:
            self.conv2 = TransformerConv(
                self.embed.out_features, classes, heads=1, dropout=self.dropout, root_weight=False
            )

    def forward(self, x: Tensor, edge_index: Tensor, pe: Tensor) -> Tensor:
        """Return the logits; [N, F], [2, E], [N, 8] -> [N, C]."""
        if self.skips:
            return super().forward(x, edge_index, pe)
        h = self.embed(dropout(x, self.dropout, self.training)) + self.place(pe)
        h = dropout(self.conv1(self.norm1(h), edge_index), self.dropout, self.training)
        h = dropout(self.mlp(self.norm2(h)), self.dropout, self.training)
        return self.conv2(dropout(self.norm3(h), self.dropout, self.training), edge_index)


class NormedGAT(nn.Module):
    """GAT whose features pass a linear layer, and whose hidden rows are normalised before each layer."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, 64)
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.conv1, self.conv2 = GATConv(64, 8, heads=8, dropout=0.6), GATConv(64, classes, dropout=0.6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits; [N, F], [2, E] -> [N, C]."""
        h = self.norm1(self.embed(dropout(x, 0.6, self.training)))
        h = self.norm2(nn.functional.elu(self.conv1(dropout(h, 0.6, self.training), edge_index)))
        return self.conv2(dropout(h, 0.6, self.training), edge_index)


MODELS = {
    "GT": (partial(PartialGT, norms=True, skips=True), None),
    "GT without skip connections": (partial(PartialGT, norms=True, skips=False), None),
    "GT without layer norms": (partial(PartialGT, norms=False, skips=True), None),
    "GT without both": (partial(PartialGT, norms=False, skips=False), None),
    "GAT with layer norms": (NormedGAT, None),
    "GAT with layer norms, FGAI": (NormedGAT, FGAI()),
}


def main(seed: int = 0) -> None:
    """Train and attack the models that have no row yet."""
    torch.set_num_threads(1)
    data = GT.prepare(datasets.compact(datasets.load("cora", seed=seed)))
    classes = int(require(data, "y").max()) + 1
    for name, (build, method) in MODELS.items():
        about = {"model": name, "seed": seed}
        if any(row.items() >= about.items() for row in rows_in(RESULTS)):
            continue
        with seeded(seed):
            model = build(data.num_features, classes)
        model = Vanilla(seed=seed).fit(model, data).model
        if method is not None:
            model = replace(method, seed=seed).fit(model, data).model
        with open_reader(model) as read:
            clean = clean_trial(read, data)
            row = {**about, "f1": measure(clean)["f1"]}
            for attack in ATTACKS:
                threat = THREATS[attack]
                row[attack] = measure(attacked_trial(threat.adversary, threat.gain, clean, seed))["f1"]
        keep(RESULTS, ("model", "seed"), [row])


if __name__ == "__main__":
    typer.run(main)
