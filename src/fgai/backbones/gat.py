"""GAT and GATv2 of the paper: a hidden layer of 8 heads x 8, and an output layer of one head, the explanation.

For link prediction the output layer computes node embeddings, and the logit of a pair is their inner product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv

from fgai.backbones.base import BACKBONES, dropout


@BACKBONES.register("gat")
class GAT(nn.Module):
    """Graph attention network (Velickovic et al. 2018), 8 heads x 8, then one head.

    >>> GAT(features=3, classes=2)(torch.ones(4, 3), torch.tensor([[0, 1], [1, 0]])).shape
    torch.Size([4, 2])
    """

    layer: type[GATConv] | type[GATv2Conv] = GATConv

    def __init__(self, features: int, classes: int, hidden: int = 8, heads: int = 8, dropout: float = 0.6) -> None:
        super().__init__()
        self.dropout = dropout
        self.conv1 = self.layer(features, hidden, heads=heads, dropout=dropout)
        self.conv2 = self.layer(hidden * heads, classes, heads=1, dropout=dropout)

    @staticmethod
    def prepare(data: Data) -> Data:
        """Return the graph unchanged."""
        return data

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits; [N, F], [2, E] -> [N, C]."""
        x = self.conv1(dropout(x, self.dropout, self.training), edge_index)
        return self.conv2(dropout(nn.functional.elu(x), self.dropout, self.training), edge_index)


@BACKBONES.register("gatv2")
class GATv2(GAT):
    """GATv2 (Brody et al. 2022): GAT with dynamic attention, 8 heads x 8, then one head.

    >>> GATv2(features=3, classes=2)(torch.ones(4, 3), torch.tensor([[0, 1], [1, 0]])).shape
    torch.Size([4, 2])
    """

    layer = GATv2Conv


EMBEDDING = 64


@BACKBONES.register("gat-links")
class GATLinks(GAT):
    """GAT for link prediction: the logits of a pair (a, b) are 0 and <z_a, z_b>.

    >>> edges, pairs = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0, 1, 2], [3, 3, 3]])
    >>> GATLinks(features=3)(torch.ones(4, 3), edges, pairs).shape
    torch.Size([3, 2])
    """

    items = "pairs"

    def __init__(self, features: int, classes: int = 2, **settings: Any) -> None:
        super().__init__(features, EMBEDDING, **settings)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride], it predicts pairs
        self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor
    ) -> Tensor:
        """Return the logits of the pairs; [N, F], [2, E], [2, M] -> [M, 2]."""
        z = super().forward(x, edge_index)
        score = (z.index_select(0, edge_label_index[0]) * z.index_select(0, edge_label_index[1])).sum(-1)
        return torch.stack([torch.zeros_like(score), score], dim=1)


@BACKBONES.register("gatv2-links")
class GATv2Links(GATLinks):
    """GATv2 for link prediction.

    >>> edges, pairs = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0, 1, 2], [3, 3, 3]])
    >>> GATv2Links(features=3)(torch.ones(4, 3), edges, pairs).shape
    torch.Size([3, 2])
    """

    layer = GATv2Conv
