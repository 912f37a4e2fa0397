from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GPSConv, SAGEConv, TransformerConv

from fgai import datasets
from fgai.adversaries import GAINS, GRBCD, PRBCD, EdgeRewiring
from fgai.adversaries.other_layers import uses_links_elsewhere
from fgai.reading import Reader, Reading
from fgai.seeding import seeded


class Two(nn.Module):
    """A layer below a layer of attention."""

    def __init__(self, first):
        super().__init__()
        self.first, self.last = first, GATConv(16, 3)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


@cache
def mixed() -> tuple[Reader, Any, Reading]:
    """A trained GCN layer below attention, its sparse graph and its clean reading."""
    graph: Any = datasets.synthetic(200, 600, features=16, classes=3, signal=0.6, seed=1)
    with seeded(0):
        model = Two(GCNConv(16, 16))
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(graph.x, graph.edge_index), graph.y).backward()
            optimizer.step()
    read = Reader(model.eval().requires_grad_(False))
    return read, graph, read(graph).detach()


def gained(attack, gain):
    read, graph, clean = mixed()
    return float(GAINS[gain](clean)(attack(read, graph, GAINS[gain](clean)).detach()))


@pytest.mark.parametrize("gain", ["kl", "cross-entropy"])
@pytest.mark.parametrize(
    "attack",
    [EdgeRewiring(20, 0, rounds=3), PRBCD(20, epochs=2), GRBCD(20, epochs=3)],
    ids=lambda attack: type(attack).__name__,
)
def test_a_search_is_no_weaker_than_random_links_where_other_layers_see_its_candidates(attack, gain):
    draws = [gained(EdgeRewiring(20, 0, greedy=False, seed=seed), gain) for seed in range(10)]
    assert gained(attack, gain) > max(draws)


@pytest.mark.parametrize(
    ("layer", "elsewhere"),
    [
        (GATConv(16, 16), False),
        (TransformerConv(16, 16), False),
        (GPSConv(16, GATConv(16, 16)), False),
        (GCNConv(16, 16), True),
        (SAGEConv(16, 16), True),
        (GPSConv(16, GCNConv(16, 16)), True),
    ],
    ids=["GAT", "transformer", "GPS of GAT", "GCN", "SAGE", "GPS of GCN"],
)
def test_other_layers_are_found_and_attention_alone_is_not_also_beside_nodes_without_a_link(layer, elsewhere):
    graph = mixed()[1]
    alone = Data(x=torch.cat([graph.x, torch.randn(20, 16)]), edge_index=graph.edge_index)
    read = Reader(Two(layer).eval())
    assert uses_links_elsewhere(read, alone, read(alone)) == elsewhere


def test_a_model_of_attention_alone_is_searched_once(monkeypatch):
    graph, pools = mixed()[1], []
    climb = EdgeRewiring._climb
    monkeypatch.setattr(EdgeRewiring, "_climb", lambda self, *given: pools.append(self.pool) or climb(self, *given))
    for layer in (GATConv(16, 16), GCNConv(16, 16)):
        read = Reader(Two(layer).eval())
        EdgeRewiring(4, 0, rounds=1, pool=500)(read, graph, GAINS["kl"](read(graph).detach()))
    assert pools == [500, 500, 100, 20, 8]
