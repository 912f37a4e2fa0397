"""Encodings of the graph, such as positional encodings, recomputed for the attacked graph."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.calling import Call, call_by_signature
from fgai.graph import require
from fgai.settings import check_whole


class RecomputedEncodings:
    """A call of a model that first computes the encodings of the graph; pass it to `Reader` or `audit` as `call`.

    A deployed model computes the encodings of the graph that it gets. Without this class, injected nodes have encodings
    of zero and all other nodes keep those of the clean graph. Graphs that share their `edge_index` are prepared once.

    Args:
        prepare: Adds to a graph the encodings that the model reads, e.g. `backbones.BACKBONES[name].prepare`.
        call: Calls the model on the prepared graph.
        size: Number of prepared graphs that are cached.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import NodeInjection, gains
    >>> from fgai.reading import Reader
    >>> data = backbones.GT.prepare(datasets.load("synthetic"))
    >>> read = Reader(backbones.build("gt", data).eval(), RecomputedEncodings(backbones.GT.prepare))
    >>> attacked = NodeInjection(2, 3, steps=1)(read, data, gains.kl(read(data).detach()))
    >>> len(attacked.logits) - data.num_nodes
    2
    """

    def __init__(self, prepare: Callable[[Data], Data], call: Call = call_by_signature, size: int = 4) -> None:
        check_whole(1, size=size)
        self._prepare, self._call, self._size = prepare, call, size
        self._cache: list[tuple[Tensor, Data]] = []  # edge_index, and the graph that was prepared with it

    def __call__(self, model: nn.Module, graph: Data) -> Tensor:
        """Return the logits on the graph with its own encodings."""
        edges = require(graph, "edge_index")
        prepared = next((value for key, value in self._cache if key is edges), None)
        if prepared is None:
            prepared = self._prepare(graph)
            self._cache = [*self._cache, (edges, prepared)][-self._size :]
        prepared = copy.copy(prepared)
        prepared.x = graph.x
        return self._call(model, prepared)
