"""The graph transformer of the paper: width 128, 8 heads, then an output layer of one head, the explanation.

Normalisation is applied before the layers. After them, as first published, training at the paper's rate of .01 is
unstable.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import TransformerConv

from fgai.backbones.base import BACKBONES, dropout
from fgai.backbones.encodings import laplacian_encodings
from fgai.graph import require

ENCODINGS = 8


@BACKBONES.register("gt")
class GT(nn.Module):
    """Graph transformer (Dwivedi & Bresson 2021), width 128, 8 heads, Laplacian encodings of size 8.

    >>> import torch
    >>> edges, pe = torch.tensor([[0, 1], [1, 0]]), torch.zeros(4, 8)
    >>> GT(features=3, classes=2)(torch.ones(4, 3), edges, pe).shape
    torch.Size([4, 2])
    """

    def __init__(self, features: int, classes: int, hidden: int = 128, heads: int = 8, dropout: float = 0.6) -> None:
        super().__init__()
        self.dropout = dropout
        self.embed = nn.Linear(features, hidden)
        self.place = nn.Linear(ENCODINGS, hidden)
        self.conv1 = TransformerConv(hidden, hidden // heads, heads=heads, dropout=dropout, root_weight=False)
        self.norm1 = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * hidden, hidden)
        )
        self.norm2 = nn.LayerNorm(hidden)
        self.norm3 = nn.LayerNorm(hidden)
        self.conv2 = TransformerConv(hidden, classes, heads=1, dropout=dropout)

    @staticmethod
    def prepare(data: Data) -> Data:
        """Return the graph with `pe`, its Laplacian positional encodings."""
        data = copy.copy(data)
        data.pe = laplacian_encodings(require(data, "edge_index"), int(data.num_nodes or 0), ENCODINGS)
        return data

    def forward(self, x: Tensor, edge_index: Tensor, pe: Tensor) -> Tensor:
        """Return the logits; [N, F], [2, E], [N, 8] -> [N, C]."""
        h = self.embed(dropout(x, self.dropout, self.training)) + self.place(pe)
        h = h + dropout(self.conv1(self.norm1(h), edge_index), self.dropout, self.training)
        h = h + dropout(self.mlp(self.norm2(h)), self.dropout, self.training)
        return self.conv2(dropout(self.norm3(h), self.dropout, self.training), edge_index)
