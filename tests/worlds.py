"""Small graphs and models that the tests of adversaries, gains, metrics, audits and sanity checks share."""

import random
from copy import copy
from functools import cache
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, GATv2Conv, HANConv, HeteroConv, HGTConv, to_hetero
from torch_geometric.nn.models import GAT
from torch_geometric.utils import add_self_loops

from fgai import datasets
from fgai.adversaries import Perturbation
from fgai.attending import AttentionPoint
from fgai.attention import Attention
from fgai.backbones import BACKBONES, build
from fgai.datasets.split import split_graphs, split_nodes
from fgai.methods import Vanilla
from fgai.reading import Reader
from fgai.seeding import seeded
from loose import loose

MODELS = (*BACKBONES, "pyg")
PARTS = ("x", "added", "dropped", "x_delta", "weight_delta", "score_delta", "node_type", "edge_type")


def small(sparse=False) -> Any:
    """40 nodes; half of the features are zero, and what any backbone needs is there."""
    return copy(_small(sparse))


@cache
def _small(sparse):
    graph = loose(split_nodes(datasets.synthetic(40, 160, features=6, classes=3, signal=1.0, seed=5), seed=5))
    graph.x = graph.x.relu().to_sparse() if sparse else graph.x.relu()
    return BACKBONES["gt"].prepare(graph)


def asked(graph, name):
    """The graph with pairs to answer for, or as a batch of one graph, where a model needs them."""
    graph = copy(graph)
    if name.endswith("-links"):
        graph.edge_label_index = graph.edge_index
    if name.endswith("-graphs"):
        masks = [key for key in graph.keys() if key.endswith("_mask")]  # noqa: SIM118, not a dict
        graph = graph.from_dict({key: value for key, value in graph.to_dict().items() if key not in masks})
        graph.y, graph.batch = graph.y.max().view(1), torch.zeros(graph.num_nodes, dtype=torch.long)
    return graph


def molecules(count=6, seed=0, **attributes) -> list[Any]:
    """Small connected graphs of 3 to 8 nodes with one-hot features; those with a node of type 0 have the label 1."""
    draw, graphs = random.Random(seed), []
    for number in range(count):
        nodes = draw.randint(3, 8)
        ends = torch.tensor([(draw.randrange(node), node) for node in range(1, nodes)] + [(0, nodes - 1)]).t()
        ends = torch.cat([ends, ends.flip(0)], dim=1).unique(dim=1)
        x = torch.eye(4)[[0] * (number % 2) + [draw.randint(1, 3) for _ in range(nodes - number % 2)]]
        graphs.append(Data(x=x, edge_index=ends, y=torch.tensor([number % 2]), **attributes))
    return graphs


def molecule_batch(count=60) -> Any:
    """Molecules with a split, for commands too: `worlds:molecule_batch`."""
    return split_graphs(molecules(count), seed=0)


def named_molecules(count=30) -> Any:
    """Molecules with the names of their elements and bonds, and known reasons: the bonds and atoms of type 0."""
    batch = molecule_batch(count)
    batch.element_names, batch.bond_names = ["C", "N", "O", "H"], ["single", "double", "aromatic"]
    batch.edge_attr = torch.eye(3)[batch.edge_index.sum(0) % 3]
    batch.node_mask = batch.x[:, 0] == 1
    batch.edge_mask = batch.node_mask[batch.edge_index].any(0)
    return batch


@cache
def community() -> Any:
    """150 nodes that are easy to learn."""
    return split_nodes(datasets.synthetic(150, 900, features=16, classes=3, signal=1.0, seed=3), seed=3)


def model_of(name, graph):
    """A new model, in evaluation mode."""
    if name in BACKBONES:
        return build(name, graph).eval()
    with seeded(0):
        return GAT(graph.num_features, 8, num_layers=2, out_channels=3, heads=2, dropout=0.5).eval()


@cache
def trained(kind="gat", epochs=30):
    """A model that has learnt `community`: a backbone, or `Told` with that rule."""
    graph = community()
    model = model_of(kind, graph) if kind in BACKBONES else Told(graph.num_features, 3, RULES[kind])
    return Vanilla(epochs=epochs).fit(model, graph).model


def answers(model, graph):
    """A reader and what it says of the graph, without gradients."""
    read = Reader(model)
    with torch.no_grad():
        return read, read(graph)


class Told(nn.Module):
    """Two layers whose scores follow a rule of (source, target), and ask nothing of the features."""

    def __init__(self, features, classes, rule, hidden=16):
        super().__init__()
        with seeded(0):
            self.lins = nn.ModuleList([nn.Linear(features, hidden), nn.Linear(hidden, classes)])
        self.points = nn.ModuleList([AttentionPoint(), AttentionPoint()])
        self.rule = rule

    def forward(self, x, edge_index):
        ends, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        for lin, point in zip(loose(self.lins), self.points, strict=True):
            weight = point(self.rule(*ends)[:, None], ends, x.size(0))
            x = torch.zeros(x.size(0), lin.out_features).index_add(0, ends[1], weight * lin(x)[ends[0]])
            x = x if lin is self.lins[-1] else x.relu()
        return x


RULES = {
    "even": lambda source, target: 0.0 * source,
    "hashed": lambda source, target: (source * 7_921 + target * 104_735) % 1_009 / 1_009 * 6,
}


def trace(model):
    """Everything of a model that an attack could leave behind."""
    return {
        name: (
            type(module),
            module.training,
            sorted(vars(module)),
            [len(v) for k, v in sorted(vars(module).items()) if "hooks" in k],
            [(key, p.tolist(), p.grad) for key, p in module.named_parameters(recurse=False)],
        )
        for name, module in model.named_modules()
    }


def tensors(graph):
    """The tensors of a graph, dense, as lists that can be compared."""
    return {
        name: (v.is_sparse, v.to_dense().tolist()) for name, v in graph.to_dict().items() if isinstance(v, torch.Tensor)
    }


def change(perturbation):
    """A perturbation as plain values that can be compared."""
    assert tuple(vars(perturbation)) == PARTS
    return [
        {site: delta.tolist() for site, delta in part.items()}
        if isinstance(part, dict)
        else None
        if part is None
        else (list(part.shape), part.tolist())
        for part in vars(perturbation).values()
    ]


def links(edge_index):
    """[2, E] -> [(source, target), ...]"""
    return [tuple(edge) for edge in edge_index.t().tolist()]


def table(attention):
    """The mean over heads of attention as {(source, target): weight}; repeated edges add up."""
    found = {}
    for edge, weight in zip(links(attention.edge_index), attention.weight.double().mean(1).tolist(), strict=True):
        found[edge] = found.get(edge, 0.0) + weight
    return found


def by_target(weights):
    """{(source, target): weight} -> {target: [(source, target), ...]}, in the order of ties: target, then source."""
    nodes = {}
    for source, target in sorted(weights, key=lambda edge: edge[::-1]):
        nodes.setdefault(target, []).append((source, target))
    return nodes


def top(edges, weights, k):
    """The k edges of largest weight; ties go to the earlier edge."""
    return sorted(edges, key=lambda edge: -weights[edge])[:k]


def shuffled(graph, seed=0):
    """The graph with its edges in another order."""
    order = list(range(graph.num_edges))
    random.Random(seed).shuffle(order)
    again = copy(graph)
    again.edge_index = graph.edge_index[:, order]
    return again


def rows_moved(attention, seed=0):
    """The same attention with its rows in another order."""
    order = list(range(len(attention.weight)))
    random.Random(seed).shuffle(order)
    return Attention(attention.weight[order], attention.edge_index[:, order], attention.num_targets)


def normalised(score, edge_index, num):
    """The softmax of scores over the edges of a target, written as a loop."""
    weight = torch.zeros_like(score)
    for node in range(num):
        at = edge_index[1] == node
        weight[at] = score[at].softmax(0)
    return Attention(weight, edge_index, num)


def injected(graph, count=2, seed=0):
    """A perturbation that puts `count` nodes in, linked to the first nodes, with random features."""
    draw = torch.Generator().manual_seed(seed)
    new = torch.arange(graph.num_nodes, graph.num_nodes + count).repeat_interleave(3)
    pairs = torch.stack([new, torch.arange(3 * count) % graph.num_nodes])
    x = torch.randn(count, graph.num_features, generator=draw)
    return Perturbation(x=x, added=torch.cat([pairs, pairs.flip(0)], 1))


def films(movies=14, directors=5, actors=8) -> Any:
    """A small typed graph: movies are labelled; directors and actors have features of other widths."""
    data, generator = HeteroData(), torch.Generator().manual_seed(3)
    for name, count, width in (("director", directors, 5), ("movie", movies, 6), ("actor", actors, 4)):
        data[name].x = torch.randn(count, width, generator=generator)
    data["movie"].y = torch.randint(3, (movies,), generator=generator)
    for place, name in enumerate(("train_mask", "val_mask", "test_mask")):
        data["movie"][name] = torch.arange(movies) % 3 == place
    for name, count, each in (("director", directors, 1), ("actor", actors, 3)):
        chosen = [torch.randperm(count, generator=generator)[:each] for _ in range(movies)]
        edges = torch.stack([torch.arange(movies).repeat_interleave(each), torch.cat(chosen)])
        data["movie", "to", name].edge_index, data[name, "to", "movie"].edge_index = edges, edges.flip(0)
    return data


class HANFilms(nn.Module):
    """Two layers of HANConv and a linear layer on the movies of `films`."""

    def __init__(self, data):
        super().__init__()
        self.conv1 = HANConv(widths(data), 8, data.metadata(), heads=2)
        self.conv2 = HANConv(8, 8, data.metadata(), heads=2)
        self.lin = nn.Linear(8, 3)

    def forward(self, x_dict, edge_index_dict):
        return self.lin(self.conv2(self.conv1(x_dict, edge_index_dict), edge_index_dict)["movie"])


class HGTFilms(nn.Module):
    """Two layers of HGTConv and a linear layer on the movies of `films`; it takes the graph itself."""

    def __init__(self, data):
        super().__init__()
        self.conv1 = HGTConv(widths(data), 8, data.metadata(), heads=2)
        self.conv2 = HGTConv(8, 8, data.metadata(), heads=2)
        self.lin = nn.Linear(8, 3)

    def forward(self, data):
        return self.lin(self.conv2(self.conv1(data.x_dict, data.edge_index_dict), data.edge_index_dict)["movie"])


class HeteroConvFilms(nn.Module):
    """Two layers of HeteroConv of GATConv on `films`; the second has the logits."""

    def __init__(self, data):
        super().__init__()
        wide, settings = widths(data), {"add_self_loops": False}
        layers: list[dict[Any, nn.Module]] = [
            {r: GATConv((wide[r[0]], wide[r[2]]), 8, **settings) for r in data.edge_types},
            {r: GATConv((8, 8), 3, heads=2, concat=False, **settings) for r in data.edge_types},
        ]
        self.conv1, self.conv2 = (HeteroConv(loose(layer)) for layer in layers)

    def forward(self, x_dict, edge_index_dict):
        x = {name: value.relu() for name, value in self.conv1(x_dict, edge_index_dict).items()}
        return self.conv2(x, edge_index_dict)  # a dict: the answers of all types


def widths(data):
    return {name: data[name].num_features for name in data.node_types}


def to_hetero_films(data):
    """A homogeneous GATv2 that `to_hetero` made typed."""

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = GATv2Conv((-1, -1), 8, add_self_loops=False)
            self.conv2 = GATv2Conv((-1, -1), 3, add_self_loops=False)

        def forward(self, x, edge_index):
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    model = to_hetero(Plain(), data.metadata())
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)  # widths of -1 are read from the first graph
    return model


FILM_MODELS = {"han": HANFilms, "hgt": HGTFilms, "hetero-conv": HeteroConvFilms, "to-hetero": to_hetero_films}


def film_model(name) -> Any:
    with seeded(0):
        return FILM_MODELS[name](films()).eval()
