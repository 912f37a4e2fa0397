"""Attacks on models that read encodings of the graph: recomputed from the attacked graph, as a deployed model would."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.graph import require
from fgai.reading import Call, call_by_signature


class RecomputedEncodings:
    """A way to call a model that gives every graph its own encodings first; pass it to `Reader` or `audit` as `call`.

    `prepare` gives a graph whatever else the model reads (`backbones.BACKBONES[name].prepare`). Without this, injected
    nodes have encodings of zero, and all others keep those of the clean graph. An attack that climbs on fixed links
    computes them once.

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
        self._prepare, self._call, self._size = prepare, call, size
        self._known: list[tuple[Tensor, Data]] = []  # edges, and the graph that was prepared from them

    def __call__(self, model: nn.Module, graph: Data) -> Tensor:
        """The logits on the graph with its own encodings."""
        edges = require(graph, "edge_index")
        known = next((ready for same, ready in self._known if same is edges), None)
        if known is None:
            known = self._prepare(graph)
            self._known = [*self._known[1 - self._size :], (edges, known)]
        ready = copy.copy(known)
        ready.x = graph.x
        return self._call(model, ready)
