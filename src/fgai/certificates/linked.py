"""Logits on many graphs with the same nodes and few links each: nodes without a link are computed once.

A layer over n nodes costs as much for a node without links as for others, and with T groups most nodes have no link in
most groups. The logits of such a node do not depend on the links of others, so they are those of the graph without
links. The first graph is computed both ways. If a logit differs, nodes are not independent (a norm over all nodes, a
table with a row for each node), and all nodes are computed in each graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.calling import Call
from fgai.certificates.chain import class_logits
from fgai.errors import FGAIError
from fgai.graph import require
from fgai.items import copied, items_of
from fgai.typed import is_typed

MOST = 0.8  # of the nodes; if more of them have a link, all are computed
ROUNDING = 1e-5  # relative to the largest logit: other shapes of matrices change the last digits


def logits_of_parts(model: nn.Module, bare: Data, parts: Iterable[Data], call: Call | None) -> Iterator[Tensor]:
    """Yield the logits of graphs with the same nodes and inputs; [N, C] each.

    Args:
        model: The model.
        bare: The graph without links.
        parts: The graphs.
        call: How to call the model. With a call of their own, all nodes are computed in each graph.

    >>> from torch_geometric.nn import GATConv
    >>> bare = Data(x=torch.eye(3), edge_index=torch.zeros(2, 0, dtype=torch.long))
    >>> path = Data(x=bare.x, edge_index=torch.tensor([[0], [1]]))
    >>> [len(logits) for logits in logits_of_parts(GATConv(3, 2), bare, [path, bare], None)]
    [3, 3]
    """
    base = _unlinked(model, bare) if call is None and not is_typed(bare) and items_of(bare).kind == "nodes" else None
    checked = False
    for part in parts:
        linked = None if base is None else _linked_nodes(part)
        if base is None or linked is None:
            yield class_logits(model, part, call)
        elif checked:
            yield base.index_copy(0, linked, class_logits(model, _induced(part, linked)))
        else:
            logits, checked = class_logits(model, part), True
            base = base if _agree(model, part, linked, base, logits) else None
            yield logits


def _unlinked(model: nn.Module, bare: Data) -> Tensor | None:
    """Return the logits of the graph without links; None if the model fails on it."""
    try:
        return class_logits(model, bare)
    except FGAIError:
        return None


def _linked_nodes(graph: Data) -> Tensor | None:
    """Return the nodes with a link, in order; None if most nodes have one."""
    has_link = torch.zeros(int(graph.num_nodes or 0), dtype=torch.bool, device=require(graph, "edge_index").device)
    has_link[require(graph, "edge_index").flatten()] = True
    linked = has_link.nonzero().flatten()
    return linked if 0 < len(linked) <= MOST * len(has_link) else None


def _induced(graph: Data, nodes: Tensor) -> Data:
    """Return the graph of these nodes, which have all links."""
    part, number = copied(graph), torch.zeros(int(graph.num_nodes or 0), dtype=torch.long, device=nodes.device)
    number[nodes] = torch.arange(len(nodes), device=nodes.device)
    for name in graph.keys():  # noqa: SIM118, not a dict
        if graph.is_node_attr(name) and isinstance(graph[name], Tensor):
            part[name] = graph[name].index_select(0, nodes)
    part.edge_index = number[require(graph, "edge_index")]
    part.num_nodes = len(nodes)
    return part


def _agree(model: nn.Module, part: Data, linked: Tensor, base: Tensor, logits: Tensor) -> bool:
    """Return whether the logits of a graph are those of its linked nodes alone, and of nodes without links."""
    try:
        alone = base.index_copy(0, linked, class_logits(model, _induced(part, linked)))
    except FGAIError:
        return False
    return bool((alone - logits).abs().max() <= ROUNDING * logits.abs().max())
