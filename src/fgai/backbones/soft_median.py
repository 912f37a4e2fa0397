"""A GCN whose aggregation is robust, as a reference: the soft median of Geisler et al. (2021).

The weights of its aggregation are a softmax, so fgai reads them as attention. They depend on no learnt score: a
neighbour weighs less, the farther it is from the median of the neighbourhood.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import softmax

from fgai.backbones.base import BACKBONES, dropout
from fgai.graph import segment_sum


@BACKBONES.register("soft-median")
class SoftMedianGCN(nn.Module):
    """Two layers of `SoftMedianConv` with 64 hidden units, without graph diffusion.

    >>> SoftMedianGCN(features=3, classes=2)(torch.ones(4, 3), torch.tensor([[0, 1], [1, 0]])).shape
    torch.Size([4, 2])
    """

    def __init__(
        self, features: int, classes: int, hidden: int = 64, temperature: float = 0.5, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.conv1 = SoftMedianConv(features, hidden, temperature)
        self.conv2 = SoftMedianConv(hidden, classes, temperature)

    @staticmethod
    def prepare(data: Data) -> Data:
        """Return the graph unchanged."""
        return data

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits; [N, F], [2, E] -> [N, C]."""
        x = self.conv1(dropout(x, self.dropout, self.training), edge_index).relu()
        return self.conv2(dropout(x, self.dropout, self.training), edge_index)


class SoftMedianConv(MessagePassing):
    """A graph convolution with the soft median in place of the weighted sum.

    With h = x W, the weights a_ij of GCN and their sum a_i over the neighbours of i, itself included:
    h'_i = a_i sum_j w_ij h_j + b, w_ij = softmax_j(log a_ij - |h_j - m_i| / (temperature sqrt(C))), where m_i is the
    weighted median of the neighbours in each of the C columns. At a high temperature it is GCN.

    Attacks that relax edges to weights (`PRBCD`, `GRBCD`, rewiring) follow w_ij, but neither degrees nor the median, so
    their gradients are approximate here. Their results are read on the changed graph all the same.

    Args:
        in_channels: Input size.
        out_channels: Output size C.
        temperature: How fast the weight falls with the distance from the median.
    """

    def __init__(self, in_channels: int, out_channels: int, temperature: float = 0.5) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.temperature = temperature
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the new features; [N, F], [2, E] -> [N, C]."""
        h = self.lin(x)
        normalised: Any = gcn_norm(edge_index, num_nodes=h.size(0), dtype=h.dtype)
        edges, weight = normalised
        centre = weighted_median(h.detach(), edges, weight)
        total = segment_sum(weight, edges[1], h.size(0))
        return self.propagate(edges, x=h, centre=h.gather(0, centre), total=total, gcn=weight) + self.bias

    def message(  # pyright: ignore[reportIncompatibleMethodOverride], PyG passes arguments by name
        self,
        x_j: Tensor,
        centre_i: Tensor,
        total_i: Tensor,
        gcn: Tensor,
        index: Tensor,
        ptr: Tensor | None,
        size_i: int,
    ) -> Tensor:
        """Return the weighted features of the sources; [E, C]."""
        distance = (x_j - centre_i).norm(dim=-1) / (self.temperature * math.sqrt(x_j.size(-1)))
        share = softmax(gcn.log() - distance, index, ptr, size_i)
        return (share * total_i).unsqueeze(-1) * x_j


def weighted_median(x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
    """Return the source that holds the weighted median of each target, in each column; [N, C], [2, E], [E] -> [N, C].

    It is the least value up to which the sources have at least half of the weight. Each target needs an edge.

    >>> x = torch.tensor([[1.0], [5.0], [9.0]])
    >>> edges = torch.tensor([[0, 1, 2, 1, 2], [0, 0, 0, 1, 2]])
    >>> weighted_median(x, edges, torch.ones(5)).flatten()
    tensor([1, 1, 2])
    """
    (source, target), nodes = edge_index, x.size(0)
    rank, amount = x.argsort(dim=0).argsort(dim=0), (weight * 2**30).long()  # whole numbers: sums do not round
    total, number = segment_sum(amount, target, nodes), torch.bincount(target, minlength=nodes)
    half, first = 2 * total.cumsum(0) - total, number.cumsum(0) - number
    chosen = torch.empty_like(rank)
    for column in range(x.size(1)):
        order = (target * nodes + rank[source, column]).argsort()
        at = torch.searchsorted(2 * amount[order].cumsum(0), half)
        chosen[:, column] = source[order[at.clamp(first, first + number - 1)]]
    return chosen
