"""Whether the seed nodes of a loader's batches have all the neighbours that a model reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.calling import Call
from fgai.checks import refuse_sampled
from fgai.devices import device_of, on_device
from fgai.errors import DataError
from fgai.graph import add_edges, require
from fgai.items import items_of
from fgai.reading import open_reader
from fgai.training.data import num_seed_nodes

TOLERANCE = 1e-4  # relative to the largest logit
BORDER = 10  # nodes of the last hop that get new links before the hops are known to be enough


def full_batches(model: nn.Module, loader: Iterable[Data], call: Call | None = None) -> Iterator[Data]:
    """Yield the batches of a loader on the device of the model; raise if their seed nodes lack neighbours.

    A loader that samples neighbours is refused. The nodes of the last hop lack their own neighbours. So new links into
    them must not change the logits of the seed nodes. That is tested until batches had some such nodes; a batch without
    them has whole neighbourhoods. Of a list of batches, or a loader that does not say how many neighbours it takes,
    nothing is tested. Batches of pairs are refused: their nodes are not told apart by whether they lack neighbours.

    Args:
        model: The model that reads the batches.
        loader: The loader.
        call: How the model is called on a graph; by its signature by default.

    Raises:
        DataError: If seed nodes lack neighbours that the model reads, or a batch is of pairs.

    >>> from fgai import backbones, datasets
    >>> from fgai.large import Loader
    >>> data = datasets.load("synthetic")
    >>> next(full_batches(backbones.build("gat", data), Loader(data, fanout=(5, 5))))
    Traceback (most recent call last):
    fgai.errors.DataError: the loader takes at most (5, 5) neighbours per hop, ...
    """
    if getattr(loader, "link_sampler", None) is not None:
        raise DataError(
            f"a {type(loader).__name__} gives parts of a graph around pairs of nodes, most of whose nodes lack "
            "neighbours, so results about their attention would be wrong; give the whole graph, with "
            "`edge_label_index`, to fgai.audit or fgai.certify"
        )
    limits = _neighbours_per_hop(loader)
    if limits is not None and any(limit >= 0 for limit in limits):
        raise DataError(
            f"the loader takes at most {limits} neighbours per hop, so results about its seed nodes would be about "
            "another graph; give fgai.large.full_neighbour_loader, or a loader with -1 for each hop"
        )
    tested = 0
    for batch in loader:
        batch = on_device(batch, device_of(model))
        if "batch_size" not in batch:
            refuse_sampled(batch)
        if limits is not None and tested < BORDER:
            tested += _check_hops(model, batch, len(limits), call)
        yield batch


def _neighbours_per_hop(loader: Any) -> tuple[int, ...] | None:
    """Return the largest numbers of neighbours that a loader of PyG or of this library takes, -1 for all."""
    sampler = getattr(loader, "node_sampler", None)
    limits = getattr(sampler, "fanout", getattr(getattr(sampler, "num_neighbors", None), "values", None))
    return tuple(limits) if isinstance(limits, list | tuple) else None


def _check_hops(model: nn.Module, batch: Data, hops: int, call: Call | None) -> int:
    """Raise if the logits of the seed nodes change with new links into the nodes that are `hops` away.

    Returns:
        The number of nodes that are `hops` away.
    """
    seeds, nodes = num_seed_nodes(batch), int(batch.num_nodes or 0)
    border = _nodes_beyond(require(batch, "edge_index"), seeds, nodes, hops - 1)
    if not len(border) or items_of(batch).typed is not None:
        return 0
    steps = torch.randint(1, nodes, (len(border),), generator=torch.Generator().manual_seed(0)).to(border)
    linked = add_edges(batch, torch.stack([(border + steps) % nodes, border]))
    with open_reader(model, call) as read, torch.no_grad():
        logits, now = (read.logits(graph)[:seeds] for graph in (batch, linked))
    if (now - logits).abs().max() > TOLERANCE * logits.abs().max():
        raise DataError(
            f"{type(model).__name__} reads more than the {hops} hops of the loader's batches: links into the nodes of "
            "the last hop change the predictions of the seed nodes; give fgai.large.exact_loader(model, graph)"
        )
    return len(border)


def _nodes_beyond(edge_index: Tensor, seeds: int, nodes: int, hops: int) -> Tensor:
    """Return the nodes from which no path of at most `hops` edges leads to one of the first `seeds` nodes."""
    near = torch.arange(nodes, device=edge_index.device) < seeds
    for _ in range(hops):
        near = near.index_fill(0, edge_index[0, near[edge_index[1]]], True)
    return (~near).nonzero().flatten()
