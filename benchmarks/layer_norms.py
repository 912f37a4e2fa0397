"""What layer norms change under `strongest`: results/layer_norms.json.

The graph transformer with and without its layer norms and its skip connections, and GAT with each of its layer norms,
on Cora, trained without a method. A model with a row in the file is not run again.

python benchmarks/layer_norms.py --seed 0
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import typer
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from fgai import datasets
from fgai.adversaries import THREATS
from fgai.backbones.base import dropout
from fgai.backbones.gat_norm import GATNorm
from fgai.backbones.gt import GT
from fgai.graph import require
from fgai.methods import Vanilla
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


class PartialGAT(GATNorm):
    """GAT with a linear layer first, with or without a layer norm before its first and its second layer."""

    def __init__(self, features: int, classes: int, *, norms: tuple[bool, bool]) -> None:
        super().__init__(features, classes)
        for name, present in zip(("norm1", "norm2"), norms, strict=True):
            if not present:
                self.set_submodule(name, nn.Identity())


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "GT": partial(PartialGT, norms=True, skips=True),
    "GT without skip connections": partial(PartialGT, norms=True, skips=False),
    "GT without layer norms": partial(PartialGT, norms=False, skips=True),
    "GT without both": partial(PartialGT, norms=False, skips=False),
    "GAT with layer norms": GATNorm,
    "GAT with the first layer norm": partial(PartialGAT, norms=(True, False)),
    "GAT with the second layer norm": partial(PartialGAT, norms=(False, True)),
    "GAT with a linear layer": partial(PartialGAT, norms=(False, False)),
}


def main(seed: int = 0) -> None:
    """Train and attack the models that have no row yet."""
    torch.set_num_threads(1)
    data = GT.prepare(datasets.compact(datasets.load("cora", seed=seed)))
    classes = int(require(data, "y").max()) + 1
    for name, build in MODELS.items():
        about = {"model": name, "seed": seed}
        if any(row.items() >= about.items() for row in rows_in(RESULTS)):
            continue
        with seeded(seed):
            model = build(data.num_features, classes)
        model = Vanilla(seed=seed).fit(model, data).model
        with open_reader(model) as read:
            clean = clean_trial(read, data)
            row = {**about, "f1": measure(clean)["f1"]}
            for attack in ATTACKS:
                threat = THREATS[attack]
                row[attack] = measure(attacked_trial(threat.adversary, threat.gain, clean, seed))["f1"]
        keep(RESULTS, ("model", "seed"), [row])


if __name__ == "__main__":
    typer.run(main)
