"""Nodes without links are computed once, and the logits are those of the model on each whole graph."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GraphNorm

from fgai.certificates.linked import logits_of_parts
from fgai.certificates.votes import Voted

NODES = 30


class One(nn.Module):
    """A layer whose rows are counted."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.rows = layer, 0

    def forward(self, x, edge_index):
        self.rows += len(x)
        return self.layer(x, edge_index)


class Normed(One):
    """A norm over all nodes: each node depends on all others."""

    def __init__(self, layer):
        super().__init__(layer)
        self.norm = GraphNorm(3)

    def forward(self, x, edge_index):
        return self.norm(super().forward(x, edge_index))


class Table(One):
    """A table with a row for each node, read by the numbers of the nodes in the links."""

    def __init__(self, layer):
        super().__init__(layer)
        self.table = nn.Parameter(torch.randn(NODES))

    def forward(self, x, edge_index):
        degree = torch.zeros(len(x)).index_add(0, edge_index[1], self.table[edge_index[0]])
        return super().forward(x, edge_index) + degree[:, None]


class Buffered(One):
    """A buffer with a row for each node: on other numbers of nodes the model fails."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) + torch.zeros(NODES, 1)


def graph(edges=60):
    torch.manual_seed(0)
    return Data(x=torch.randn(NODES, 4), edge_index=torch.randint(NODES, (2, edges)), y=torch.zeros(NODES).long())


@pytest.mark.parametrize("layer", [GATConv, GCNConv])
@torch.no_grad()
def test_logits_are_those_of_the_whole_graph_from_fewer_rows(layer):
    data, model = graph(), One(layer(4, 3)).eval()
    parts = list(Voted(model, groups=11).graphs(data))
    bare = Data(x=data.x, edge_index=data.edge_index[:, :0])
    for sparse in (False, True):
        rows = [part.clone() for part in parts]
        for part in (*rows, bare):
            part.x = data.x.to_sparse() if sparse else data.x
        if sparse and layer is GCNConv:
            continue  # its linear layer takes dense rows only
        model.rows = 0
        found = list(logits_of_parts(model, bare, rows, None))
        assert model.rows < 11 * NODES
        for part, logits in zip(parts, found, strict=True):
            assert torch.allclose(logits, model(data.x, part.edge_index), atol=1e-6)


@pytest.mark.parametrize("kind", [Normed, Table, Buffered])
@torch.no_grad()
def test_models_whose_nodes_are_not_independent_get_the_whole_graph(kind):
    data, model = graph(), kind(GATConv(4, 3)).eval()
    parts = list(Voted(model, groups=11).graphs(data))
    bare = Data(x=data.x, edge_index=data.edge_index[:, :0])
    for part, logits in zip(parts, logits_of_parts(model, bare, parts, None), strict=True):
        assert torch.equal(logits, model(data.x, part.edge_index))


@torch.no_grad()
def test_a_call_of_its_own_gets_the_whole_graph():
    data, model, seen = graph(), One(GATConv(4, 3)).eval(), []

    def call(module, part):
        seen.append(len(part.x))
        return module(part.x, part.edge_index)

    votes = Voted(model, groups=5).votes(data, call)
    assert seen == [NODES] * 5
    assert torch.equal(votes.count, Voted(model, groups=5).votes(data).count)
