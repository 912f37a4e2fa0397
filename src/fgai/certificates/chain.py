"""Models of one or two GATConv or GATv2Conv layers with a monotone activation between them, as matrices in float64.

A model is recognised by its calls and its output. The activation must map the output of the first layer to the input
of the second. Both layers are computed again from their matrices (`fgai.certificates.layers`). If the logits agree, the
model is such a chain. Otherwise `NoBoundError` describes what is not supported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import TransformerConv

from fgai.adversaries.gains import binary_logits
from fgai.calling import Call, call_model, eval_mode
from fgai.certificates.layers import Activation, Layer, LayerCall, identity, match_activation, recorded_calls
from fgai.checks import check_logits, expected_rows
from fgai.devices import to_double
from fgai.errors import FGAIError
from fgai.graph import degree, edge_keys, require, segment_sum, stable_sort
from fgai.reading import Reading


class NoBoundError(FGAIError, ValueError):
    """No bound is known for the model; the message is the reason."""


@dataclass(frozen=True)
class Chain:
    """The layers of a model, with their values on the clean graph."""

    first: Layer | None
    last: Layer
    act: Activation
    x: Tensor  # [N, F]
    source: Tensor  # [E], without self-loops
    target: Tensor  # [E]
    normal: Tensor  # [N, H], log of the first layer's sum of exp(score), self-loop included
    pre: Tensor  # [N, H, C], the first layer's output before the activation
    hidden: Tensor  # [N, K], the input of the last layer
    logits: Tensor  # [N, classes]

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.x)

    @property
    def prediction(self) -> Tensor:
        """The predicted class of each node; [N]."""
        return self.logits.argmax(1)

    def projected(self) -> Chain:
        """Return the same chain with the few numbers of each node that the first layer computes as its features."""
        if self.first is None:
            return self
        first, x = self.first.on_projections(self.x)
        return replace(self, first=first, x=x)

    def parts(self, edges: int) -> Iterator[tuple[Tensor, Tensor, Chain]]:
        """Yield disjoint sets of nodes that cover all, each with a chain that has all edges into them.

        Args:
            edges: The most edges of a part; more only if one node has more.

        Yields:
            The nodes of a part, their places in its chain, and the chain.
        """
        target, order = stable_sort(self.target)
        ends = degree(target, self.nodes).cumsum(0)
        start = first = 0
        while start < self.nodes:
            last = max(start + 1, int(torch.searchsorted(ends, first + edges, right=True)))
            own = order[first : int(ends[last - 1])]
            inside = torch.zeros(self.nodes, dtype=torch.bool, device=target.device)
            inside[start:last] = True
            inside[self.source[own]] = True
            place, at = inside.long().cumsum(0) - 1, inside.nonzero().flatten()
            part = replace(self, source=place[self.source[own]], target=place[self.target[own]])
            rows = {name: getattr(self, name) for name in ("x", "normal", "pre", "hidden", "logits")}
            rows = {name: value[at] for name, value in rows.items() if len(value) == self.nodes}
            nodes = torch.arange(start, last, device=target.device)
            yield nodes, place[nodes], replace(part, **rows)
            start, first = last, int(ends[last - 1])


def parse_chain(model: nn.Module, data: Data, call: Call | None = None) -> Chain:
    """Return the layers of the model with their values on this graph.

    Raises:
        NoBoundError: The model is not a chain of one or two supported layers.

    >>> from torch_geometric.nn import GATConv
    >>> data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [2, 2]]))
    >>> parse_chain(GATConv(3, 2), data).logits.shape
    torch.Size([3, 2])
    """
    with recorded_calls(model) as calls:
        logits = class_logits(model, data, call)
    _check_supported([call.layer for call in calls], logits, data)
    links = require(data, "edge_index")
    x = require(data, "x").detach()
    x = to_double(x.to_dense() if x.is_sparse else x)
    links, logits = links[:, links[0] != links[1]].to(x.device), to_double(logits)
    act = _activation(calls)
    chain = None if act is None else run_layers([Layer.of(call.layer) for call in calls], act, x, links)
    if chain is None or not torch.allclose(chain.logits, logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max())):
        raise NoBoundError(
            f"{type(model).__name__} does more between its attention layers than apply a monotone activation (a norm, "
            "a residual or other layers); no bound is known for such models"
        )
    return chain


def attend(layer: Layer, x: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of a layer, [N, H, C], and the log-sum-exp of its scores, [N, H]; links have no self-loops."""
    nodes = len(x)
    if layer.loops:
        source, target = (torch.cat([ends, torch.arange(nodes, device=x.device)]) for ends in (source, target))
    score = layer.scores(x, source, target)
    top = segment_max(score, target, nodes).detach()  # a shift of all scores changes nothing
    mass = (score - top[target]).exp()
    total = segment_sum(mass, target, nodes).clamp(min=1e-300)
    weight, value = mass / total[target], layer.values(x) - layer.shift
    heads = [
        segment_sum(weight[:, h, None] * value[:, h][source], target, nodes) for h in range(value.size(1))
    ]  # one after the other: an edge has many values
    return torch.stack(heads, 1) + layer.shift, total.log() + top


def segment_max(value: Tensor, index: Tensor, num: int) -> Tensor:
    """Return the maximum of each segment; -1e6 for an empty one, so that exp(value - maximum) is finite."""
    along = index.view(-1, *[1] * (value.dim() - 1)).expand_as(value)
    return value.new_full((num, *value.shape[1:]), -1e6).scatter_reduce(0, along, value, "amax")


def class_logits(model: nn.Module, data: Data, call: Call | None = None) -> Tensor:
    """Return the logits of a model with or without attention, one column per class, without gradients; [N, C].

    >>> from torch_geometric.nn import GATConv
    >>> class_logits(GATConv(3, 1), Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))).shape
    torch.Size([2, 2])
    """
    with eval_mode(model), torch.no_grad():
        logits = call_model(model, data, call)
    check_logits(logits, type(model).__name__, expected_rows(data))
    return binary_logits(Reading(logits, {}))


def run_layers(parts: list[Layer], act: Activation, x: Tensor, links: Tensor) -> Chain:
    """Compute the layers with this activation; links have no self-loops, [2, E]."""
    *early, last = parts
    normal, pre, hidden = x.new_zeros(0), x.new_zeros(0), x
    if early:
        pre, normal = attend(early[0], x, *links)
        hidden = act(pre).flatten(1)
    logits = attend(last, hidden, *links)[0][:, 0]
    return Chain(early[0] if early else None, last, act, x, links[0], links[1], normal, pre, hidden, logits)


def _activation(calls: list[LayerCall]) -> Activation | None:
    """Return the activation between two layers, or None if there is another function."""
    return match_activation(calls[0].out, calls[1].x) if len(calls) == 2 else identity


def _check_supported(layers: list[Any], logits: Tensor, data: Data) -> None:
    """Raise `NoBoundError` unless a bound is known for these layers on this graph."""
    links = require(data, "edge_index")
    loops = bool((links[0] == links[1]).any())
    if any(isinstance(layer, TransformerConv) for layer in layers):
        raise NoBoundError(
            "the scores of TransformerConv are products of two states, so a change of one state changes each score "
            "without limit; no bound is known"
        )
    if not 1 <= len(layers) <= 2:
        raise NoBoundError(
            f"{len(layers)} attention layers of PyG were called; bounds are known for one or two, since with more "
            "of them a change at a node reaches the states of its neighbours"
        )
    if layers[-1].heads != 1:
        raise NoBoundError("the last layer has several heads; the worst cases of their softmaxes do not add up")
    if len(layers) == 2 and not layers[0].concat:
        raise NoBoundError("the first layer averages its heads; bounds are known for concatenated heads")
    if any(layer.edge_dim is not None or not isinstance(layer.in_channels, int) for layer in layers):
        raise NoBoundError("a layer has edge features, or separate sources and targets; no bound is known")
    if not all(0 < layer.negative_slope <= 1 for layer in layers):
        raise NoBoundError("a layer's negative_slope is not above 0 and at most 1; no bound is known")
    if loops and not all(layer.add_self_loops for layer in layers):
        raise NoBoundError("the graph has self-loops and a layer does not replace them by its own; no bound is known")
    if len(edge_keys(links, int(data.num_nodes or 0)).unique()) != links.size(1):
        raise NoBoundError("some links of the graph have copies; call data.coalesce() first")
    if len(logits) != data.num_nodes or logits.size(1) != layers[-1].out_channels:
        raise NoBoundError("the logits are not the output of the last attention layer; no bound is known")
