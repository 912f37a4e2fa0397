"""GAT with layer norms: no hidden row, and so no message of a neighbour, is larger than others.

In a layer that is linear in its features, an injected row far outside the data can outweigh dozens of neighbours. A
layer norm before each attention layer takes that advantage away.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from fgai.backbones.base import BACKBONES, dropout


@BACKBONES.register("gat-norm")
class GATNorm(nn.Module):
    """GAT, 8 heads x 8, then one head, with a linear layer first and `nn.LayerNorm` before each attention layer.

    >>> import torch
    >>> GATNorm(features=3, classes=2)(torch.ones(4, 3), torch.tensor([[0, 1], [1, 0]])).shape
    torch.Size([4, 2])
    """

    def __init__(self, features: int, classes: int, hidden: int = 8, heads: int = 8, dropout: float = 0.6) -> None:
        super().__init__()
        self.dropout = dropout
        self.embed = nn.Linear(features, hidden * heads)
        self.norm1, self.norm2 = nn.LayerNorm(hidden * heads), nn.LayerNorm(hidden * heads)
        self.conv1 = GATConv(hidden * heads, hidden, heads=heads, dropout=dropout)
        self.conv2 = GATConv(hidden * heads, classes, heads=1, dropout=dropout)

    @staticmethod
    def prepare(data: Data) -> Data:
        """Return the graph unchanged."""
        return data

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits; [N, F], [2, E] -> [N, C]."""
        h = self.norm1(self.embed(dropout(x, self.dropout, self.training)))
        h = self.conv1(dropout(h, self.dropout, self.training), edge_index)
        h = self.norm2(nn.functional.elu(h))
        return self.conv2(dropout(h, self.dropout, self.training), edge_index)
