"""Readings that stream over a graph's nodes and are exact: what a model says of each as if it saw the whole graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.attention import Attention
from fgai.checks import one_graph
from fgai.devices import device_of, on_device
from fgai.errors import DataError
from fgai.methods.batches import seeds_of
from fgai.reading import Call, Reading, open_reader


@dataclass(frozen=True)
class Seen:
    """What a model says of some nodes, and the ids of all nodes in their batch; those it is said of come first."""

    ids: Tensor  # [B]
    reading: Reading  # of the first ones; the sources of its attention are numbered as in the batch

    @property
    def nodes(self) -> Tensor:
        """The nodes that are read."""
        return self.ids[: len(self.reading.logits)]

    def attention(self, site: str) -> Attention:
        """The attention of a site between the graph's own nodes; its targets are `nodes`."""
        look = self.reading.attention[site]
        return replace(look, edge_index=self.ids[look.edge_index])


def readings(model: nn.Module, loader: Iterable[Data], *, call: Call | None = None) -> Iterator[Seen]:
    """Read batch by batch; exact where the seeds have their whole neighbourhood (`exact`), one hop a layer.

    >>> from fgai import backbones, datasets
    >>> from fgai.scale.loader import exact
    >>> data = datasets.load("synthetic")
    >>> sum(len(seen.nodes) for seen in readings(backbones.build("gat", data), exact(data, hops=2)))
    1000
    """
    with open_reader(model, call) as read:
        for batch in (on_device(batch, device_of(model)) for batch in loader):
            yield Seen(batch.n_id, read.checked(one_graph(batch)).of_first(seeds_of(batch)))


def joined(parts: Iterable[Seen], nodes: int) -> Reading:
    """One reading of a graph of `nodes` nodes; NaN where no part has one. It takes the memory of all attention."""
    seen = list(parts)
    if not seen:
        raise DataError("there is nothing to join; give the loader seeds")
    first = seen[0].reading
    logits = first.logits.new_full((nodes, *first.logits.shape[1:]), torch.nan)
    for part in seen:
        logits[part.nodes] = part.reading.logits
    looks = {site: [part.attention(site) for part in seen] for site in first.attention}
    return Reading(logits, {site: _one(some, nodes) for site, some in looks.items()})


def _one(looks: list[Attention], nodes: int) -> Attention:
    weight = torch.cat([look.weight for look in looks])
    return Attention(weight, torch.cat([look.edge_index for look in looks], 1), nodes)
