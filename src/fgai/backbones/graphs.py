"""Models that classify graphs: three attention layers, the mean over the nodes of a graph, and a linear layer.

Layers have residual connections: without them, Mutagenicity is learnt less well. The last layer has one head, the
explanation. The dropout is small: graphs have few nodes, and features few columns.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, GPSConv, global_mean_pool

from fgai.backbones.base import BACKBONES, dropout


@BACKBONES.register("gat-graphs")
class GATGraphs(nn.Module):
    """GAT for graph classification: 8 heads x 8, twice, then one head of 64, mean pooling and a linear layer.

    >>> import torch
    >>> edges, batch = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1, 1])
    >>> GATGraphs(features=3, classes=2)(torch.ones(4, 3), edges, batch).shape
    torch.Size([2, 2])
    """

    items = "graphs"
    layer: type[GATConv] | type[GATv2Conv] = GATConv

    def __init__(self, features: int, classes: int, hidden: int = 8, heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout, width = dropout, hidden * heads
        self.conv1 = self.layer(features, hidden, heads=heads, residual=True)
        self.conv2 = self.layer(width, hidden, heads=heads, residual=True)
        self.conv3 = self.layer(width, width, heads=1, residual=True)
        self.lin = nn.Linear(width, classes)

    @staticmethod
    def prepare(data: Data) -> Data:
        """Return the batch unchanged."""
        return data

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Return the logits of the graphs; [N, F], [2, E], [N] -> [G, C]."""
        x = nn.functional.elu(self.conv1(x, edge_index))
        x = nn.functional.elu(self.conv2(dropout(x, self.dropout, self.training), edge_index))
        x = nn.functional.elu(self.conv3(dropout(x, self.dropout, self.training), edge_index))
        return self.lin(global_mean_pool(x, batch))


@BACKBONES.register("gatv2-graphs")
class GATv2Graphs(GATGraphs):
    """GATv2 for graph classification.

    >>> import torch
    >>> edges, batch = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1, 1])
    >>> GATv2Graphs(features=3, classes=2)(torch.ones(4, 3), edges, batch).shape
    torch.Size([2, 2])
    """

    layer = GATv2Conv


@BACKBONES.register("gps-graphs")
class GPSGraphs(nn.Module):
    """GPS (Rampasek et al. 2022) for graph classification: a GAT layer and global attention, twice, then one head.

    Explanations are about the GAT layers. The global attention is read as `layer:conv1.attn` and `layer:conv2.attn`.

    >>> import torch
    >>> edges, batch = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1, 1])
    >>> GPSGraphs(features=3, classes=2)(torch.ones(4, 3), edges, batch).shape
    torch.Size([2, 2])
    """

    items = "graphs"

    def __init__(self, features: int, classes: int, hidden: int = 64, heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Linear(features, hidden)
        self.conv1 = self._layer(hidden, heads, dropout)
        self.conv2 = self._layer(hidden, 1, dropout)
        self.lin = nn.Linear(hidden, classes)

    @staticmethod
    def _layer(hidden: int, heads: int, dropout: float) -> GPSConv:
        conv = GATConv(hidden, hidden // heads, heads=heads)
        return GPSConv(hidden, conv, heads=4, dropout=dropout, norm="layer_norm")

    @staticmethod
    def prepare(data: Data) -> Data:
        """Return the batch unchanged."""
        return data

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Return the logits of the graphs; [N, F], [2, E], [N] -> [G, C]."""
        x = self.conv1(self.embed(x), edge_index, batch)
        return self.lin(global_mean_pool(self.conv2(x, edge_index, batch), batch))
