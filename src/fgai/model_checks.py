"""Checks of a model that need further readings: it repeats its answers, and it uses the links that it is given."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch_geometric.data import Data

from fgai.errors import CallError, FGAIError
from fgai.graph import require, without_edges
from fgai.reading import Reader, Reading


def repeated_reading(read: Reader, graph: Data) -> Reading:
    """Return the checked reading of the clean graph; raise `CallError` if a second one differs by more than rounding.

    >>> from torch_geometric.nn import GATConv
    >>> graph = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    >>> repeated_reading(Reader(GATConv(3, 2).eval()), graph).logits.shape
    torch.Size([2, 2])
    """
    first = read.checked(graph)
    with torch.no_grad():
        again = read(graph)
    if (moved := distance(first, again)) is not None:
        name = type(read.model).__name__
        raise CallError(
            f"{name} gives two answers for one graph in evaluation mode, {moved:.2g} apart, so its noise would count "
            "as the effect of an attack; check that F.dropout has training=self.training, that no edges or features "
            "are sampled in evaluation mode, and that `eval` is not overridden"
        )
    return first


def check_links_used(read: Reader, graph: Data, clean: Reading, attacked: Reading | None = None) -> None:
    """Raise `CallError` if changed links do not reach the model, which has its own: then no attack on them can.

    Args:
        read: Reader of the model.
        graph: The clean graph.
        clean: Its reading.
        attacked: The reading of a graph with other links. If a layer attends over another number of edges there, the
            graph without edges is not read.
    """
    links = _num_links(clean)
    if not any(links.values()) or (attacked is not None and links != _num_links(attacked)):
        return
    try:
        with torch.no_grad():
            bare = read(without_edges(graph))
    except FGAIError:  # without edges it fails, so it uses them
        return
    refuse_unused_links(read.model, graph, clean, bare)


def refuse_unused_links(model: nn.Module, graph: Data, clean: Reading, bare: Reading) -> None:
    """Raise `CallError` if the readings of a graph and of the graph without links are the same."""
    edges = require(graph, "edge_index").size(1)
    if edges and distance(clean, bare) is None:
        what = "logits and attention" if clean.attention else "logits"
        raise CallError(
            f"{type(model).__name__} does not use the links of the graph that it is given: without its {edges} edges, "
            f"{what} are the same, so no change of links reaches it. It has the edges of another graph; let `forward` "
            "take edge_index, and pass that of the argument: call=lambda model, data: model(data.x, data.edge_index)"
        )


def _num_links(reading: Reading) -> dict[str, int]:
    """Return the number of edges of each layer that attends over edges, without self-loops."""
    layers = {site: layer.edge_index for site, layer in reading.attention.items() if layer.over == "edges"}
    return {site: int((ends[0] != ends[1]).sum()) for site, ends in layers.items()}


def distance(one: Reading, other: Reading, *, exact: bool = False) -> float | None:
    """Return the largest difference of the logits and of the attention; None if it is rounding at most.

    Args:
        one: A reading.
        other: Another reading; the distance is infinite if its layers, their edges or the shapes are others.
        exact: Count rounding as a difference, too.
    """
    if one.attention.keys() != other.attention.keys():
        return math.inf
    layers = [(layer, other.attention[site]) for site, layer in one.attention.items()]
    pairs = [(one.logits, other.logits), *((first.weight, second.weight) for first, second in layers)]
    if any(first.shape != second.shape for first, second in pairs) or any(
        not torch.equal(first.edge_index, second.edge_index) for first, second in layers
    ):
        return math.inf
    moved = [(first - second).abs().max() for first, second in pairs if first.numel()]
    sizes = [first.abs().max() * torch.finfo(first.dtype).eps ** 0.5 for first, _ in pairs if first.numel()]
    if all(bool(by <= (0 if exact else size)) for by, size in zip(moved, sizes, strict=True)):
        return None
    return max(map(float, moved))
