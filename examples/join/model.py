"""A model that joins the bench with its weights.

python model.py                                             # trains it, and writes model.safetensors
fgai bench submit model.py --as two-layers --plan plan.toml
"""

from __future__ import annotations

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv

import fgai

DATASET, SEED = "synthetic-words", 0  # the graph, and the seed of its split


class Net(nn.Module):
    """Two layers of GATv2."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first = GATv2Conv(features, 8, heads=4, dropout=0.5)
        self.last = GATv2Conv(32, classes, dropout=0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits; [N, F], [2, E] -> [N, C]."""
        return self.last(self.first(x, edge_index).relu(), edge_index)


def build() -> nn.Module:
    """The model without its weights."""
    torch.manual_seed(SEED)
    data = fgai.datasets.load(DATASET, seed=SEED)
    return Net(data.num_features, int(data["y"].max()) + 1)


if __name__ == "__main__":
    data = fgai.datasets.load(DATASET, seed=SEED)
    save_model(fgai.Vanilla(epochs=15).fit(build(), data).model, "model.safetensors")
    print("model.safetensors is written")
