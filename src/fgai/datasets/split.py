"""Random splits of nodes, links or graphs into training, validation and test."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import RandomLinkSplit

from fgai.errors import DataError
from fgai.graph import require
from fgai.items import items_of, select_graphs
from fgai.seeding import seeded


def split_nodes(data: Data, seed: int, train: float = 0.1, val: float = 0.1) -> Data:
    """Return the graph with random masks: shares for training and validation, the rest for test."""
    nodes = int(data.num_nodes or 0)
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))
    first, second = int(train * nodes), int(val * nodes)
    return by_index(data, order[:first], order[first : first + second], order[first + second :])


def by_index(data: Data, train: Tensor, val: Tensor, test: Tensor) -> Data:
    """Return the graph with masks of these nodes."""
    data = copy.copy(data)
    for name, nodes in (("train_mask", train), ("val_mask", val), ("test_mask", test)):
        data[name] = torch.zeros(int(data.num_nodes or 0), dtype=torch.bool).index_fill_(0, nodes, True)
    return data


def without_test_nodes(data: Data) -> Data:
    """Return the graph without the nodes in `test_mask` and their edges, for inductive training.

    Of a batch of graphs, return it without the graphs in `test_mask`.

    >>> data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 2], [1, 0, 1]]), y=torch.arange(3))
    >>> data.test_mask = torch.tensor([False, False, True])
    >>> without_test_nodes(data)
    Data(x=[2, 3], edge_index=[2, 2], y=[2], test_mask=[2])
    """
    if "edge_label_index" in data:
        raise DataError(
            "this graph is for link prediction, and inductive training needs labelled nodes; use another one"
        )
    outside = ~require(data, "test_mask")
    return select_graphs(data, outside) if items_of(data).kind == "graphs" else data.subgraph(outside)


def split_graphs(graphs: list[Data], seed: int, train: float = 0.7, val: float = 0.1) -> Data:
    """Return the graphs as one `Batch`; each has masks [1], which are [G] in the batch and stay with it in a loader."""
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed))
    first, second = int(train * len(graphs)), int((train + val) * len(graphs))
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(graphs)))
    parts = {"train_mask": place < first, "val_mask": (place >= first) & (place < second), "test_mask": place >= second}
    split: list[Any] = [copy.copy(graph) for graph in graphs]
    for name, mask in parts.items():
        for graph, inside in zip(split, mask.split(1), strict=True):
            graph[name] = inside
    batch: Any = Batch.from_data_list(split)
    return batch


def split_links(data: Data, seed: int) -> Data:
    """Return a graph for link prediction, which classifies node pairs; its edges are the training links.

    `RandomLinkSplit(num_val=.05, num_test=.1, is_undirected=True)` splits the links. `edge_label_index` holds the pairs
    of all parts; `y` is 1 for a link and 0 for a negative pair, of which there are as many. The masks are of pairs.
    """
    split = RandomLinkSplit(num_val=0.05, num_test=0.1, is_undirected=True)
    with seeded(seed):
        parts: list[Data] = list(split(Data(x=data.x, edge_index=data.edge_index)))
    linked = Data(x=data.x, edge_index=parts[0].edge_index)
    linked.edge_label_index = torch.cat([part.edge_label_index for part in parts], dim=1)
    linked.y = torch.cat([part.edge_label for part in parts]).long()
    part_of = torch.arange(3).repeat_interleave(torch.tensor([len(part.edge_label) for part in parts]))
    linked.train_mask, linked.val_mask, linked.test_mask = part_of == 0, part_of == 1, part_of == 2
    return linked
