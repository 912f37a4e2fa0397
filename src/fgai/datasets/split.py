"""Which nodes or links a model learns from, is chosen by, and is judged on: by a seed, for all methods alike."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit

from fgai.seeding import seeded


class LinkSplit(NamedTuple):
    """Three graphs that share their nodes; `edge_label_index` and `edge_label` are the links to predict."""

    train: Data
    val: Data
    test: Data


def split_nodes(data: Data, seed: int, train: float = 0.1, val: float = 0.1) -> Data:
    """The graph with random masks: a share to train on, a share to choose by, the rest to judge on."""
    nodes = int(data.num_nodes or 0)
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))
    first, second = int(train * nodes), int(val * nodes)
    return by_index(data, order[:first], order[first : first + second], order[first + second :])


def by_index(data: Data, train: Tensor, val: Tensor, test: Tensor) -> Data:
    """The graph with masks that hold these nodes."""
    data = copy.copy(data)
    for name, nodes in (("train_mask", train), ("val_mask", val), ("test_mask", test)):
        data[name] = torch.zeros(int(data.num_nodes or 0), dtype=torch.bool).index_fill_(0, nodes, True)
    return data


def split_links(data: Data, seed: int) -> LinkSplit:
    """The paper's link split, `RandomLinkSplit(num_val=.05, num_test=.1)` of an undirected graph.

    The training part has no negative links: draw new ones each epoch.
    """
    split = RandomLinkSplit(num_val=0.05, num_test=0.1, is_undirected=True, add_negative_train_samples=False)
    with seeded(seed):
        return LinkSplit(*split(data))
