"""Computation graphs: the nodes and edges that predictions depend on. Large graphs are tested on a part of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adjacency import adjacencies_of
from fgai.attending import attention_layers
from fgai.errors import CallError
from fgai.graph import require, select_parts
from fgai.items import items_of
from fgai.patching import message_passing_layers
from fgai.reading import Reader, Reading
from fgai.typed import is_typed

LARGE = 500_000  # edges; the tests of smaller graphs run on the whole graph
TOLERANCE = 1e-4  # largest difference of logits on a part and on the graph, relative to the largest logit


@dataclass(frozen=True)
class ComputationGraph:
    """The nodes and edges within some hops of given nodes, as a graph of its own."""

    graph: Data
    columns: Tensor  # [e], its edges in the full graph
    nodes: Tensor  # [n], the given nodes
    roots: Tensor  # [n], its ids of the given nodes


def computation_graph(data: Data, nodes: Tensor, hops: int) -> ComputationGraph:
    """Return the graph that predictions for `nodes` depend on in a model with so many layers.

    It has all edges into nodes that are fewer than `hops` steps away, and the ends of these edges.

    Args:
        data: The graph.
        nodes: Ids of the nodes, [n].
        hops: The number of message-passing layers.

    >>> path = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    >>> part = computation_graph(path, torch.tensor([3]), hops=2)
    >>> part.columns.tolist(), part.graph.edge_index.tolist(), part.roots.tolist()
    ([1, 2], [[0, 1], [1, 2]], [2])
    """
    source, target = edges = require(data, "edge_index")
    inside = torch.zeros(int(data.num_nodes or 0), dtype=torch.bool, device=edges.device)
    inside[nodes] = True
    reached = torch.zeros_like(target, dtype=torch.bool)
    for _ in range(hops):
        reached = inside[target]
        inside[source[reached]] = True
    among = inside.cumsum(0) - 1
    columns = reached.nonzero()[:, 0]
    graph = select_parts(data, inside.nonzero()[:, 0], columns, among[edges[:, columns]])
    return ComputationGraph(graph, columns, nodes, among[nodes])


def large_part(read: Reader, data: Data, logits: Tensor, nodes: Tensor, hops: int) -> ComputationGraph | None:
    """Return the computation graph of `nodes` if the graph is large and the model predicts the same on it.

    Args:
        read: Reader of the model, in evaluation mode.
        data: The graph.
        logits: The logits on it, [N, C].
        nodes: Ids of the nodes, [n].
        hops: The number of message-passing layers.

    Returns:
        The computation graph; None if the graph has at most `LARGE` edges, if it is a batch, typed or has an
        adjacency matrix, or if a prediction depends on more than these hops.
    """
    plain = items_of(data).kind == "nodes" and not is_typed(data) and not adjacencies_of(data) and "batch" not in data
    if not plain or require(data, "edge_index").size(1) <= LARGE:
        return None
    part = computation_graph(data, nodes, hops)
    try:
        with torch.no_grad():
            on_part = read.logits(part.graph)[part.roots]
    except (CallError, IndexError, RuntimeError):  # a model of a fixed number of nodes
        return None
    near = (on_part - logits[nodes]).abs().max() <= TOLERANCE * logits.abs().max().clamp(min=1e-6)
    return part if near else None


def depth_of(model: nn.Module, clean: Reading) -> tuple[int, int]:
    """Return the number of message-passing layers, and 1 if one of them has no attention, else 0."""
    layers, attending = message_passing_layers(model), attention_layers(model)
    others = [name for name in layers if not any(site == name or site.startswith(f"{name}.") for site in attending)]
    own = sum(attention.over == "edges" for attention in clean.attention.values())
    typed = clean.items is not None and clean.items.typed is not None  # its relations are modules of their own
    return max(own + len(others), 0 if typed else len(layers)), int(bool(others))
