"""Models of one or two GATConv or GATv2Conv layers with a monotone activation between them, as matrices in float64.

A model is recognised by its calls and its output. The features must be the input of the first layer, and the activation
must map its output to the input of the second. Both layers are computed again from their matrices
(`fgai.certificates.layers`). If the logits agree up to rounding and a number that all classes share, on the graph and
on two with other features and fewer links, the model is such a chain. Otherwise `NoBoundError` describes what is not
supported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import TransformerConv

from fgai.adversaries.gains import binary_logits
from fgai.calling import Call, call_model
from fgai.certificates.layers import Activation, Layer, LayerCall, identity, match_activation, recorded_calls
from fgai.certificates.rounding import LargestForm, Slack
from fgai.checks import check_logits, expected_rows
from fgai.devices import to_double
from fgai.errors import FGAIError
from fgai.graph import degree, delete_edges, edge_keys, require, segment_sum, stable_sort
from fgai.items import copied
from fgai.modes import eval_mode
from fgai.reading import Reading
from fgai.rows import with_values

HALF = (torch.half, torch.bfloat16)
ENOUGH = 150_000  # links of a graph that is only compared
FAR = 100.0  # the largest feature of the changed graph, relative to that of the graph


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
    logits: Tensor  # [N, classes], of the model if it was parsed
    eps: float = torch.finfo(torch.float).eps  # the precision of the model

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.x)

    @property
    def prediction(self) -> Tensor:
        """The predicted class of each node; [N]."""
        return self.logits.argmax(1)

    def slack(self, reach: LargestForm | None = None, largest: float | None = None) -> Slack:
        """Return what rounding may change: with the features of the graph, or with others (see `Slack.of`)."""
        reach = self.reach if reach is None else reach
        largest = float(self.x.abs().max()) if largest is None else largest
        return Slack.of(self.first, self.last, self.act, self.eps, reach, largest)

    def reach(self, form: Tensor) -> Tensor:
        """Return the largest |form . x| over the nodes of the graph; [..., F] -> [...]."""
        return torch.tensordot(self.x, form.movedim(-1, 0), 1).abs().amax(0)

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
    _check_supported(calls, logits, data)
    runs = [(data, calls, logits)]
    for far in (False, True):
        changed = _changed(data, far=far)
        with recorded_calls(model) as again:
            try:
                runs.append((changed, again, class_logits(model, changed, call)))
            except FGAIError as error:
                raise NoBoundError(f"{type(model).__name__} fails on a graph with other features ({error})") from error
    act = _activation([calls for _, calls, _ in runs])
    if act is not None and all(_takes_features(calls, graph) for graph, calls, _ in runs):
        chains = [_computed(calls, act, graph, logits) for graph, calls, logits in runs]
        if chains[0] is not None and None not in chains:
            return chains[0]
    raise NoBoundError(
        f"{type(model).__name__} does more than two attention layers with a monotone activation between them (it "
        "changes its features first, or has a norm, a residual or other layers); no bound is known for such models"
    )


def attend(layer: Layer, x: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of a layer, [N, H, C], and the log-sum-exp of its scores, [N, H]; links have no self-loops."""
    nodes = len(x)
    if layer.loops:
        source, target = (torch.cat([ends, torch.arange(nodes, device=x.device)]) for ends in (source, target))
    score = layer.scores(x, source, target)
    top = segment_max(score, target, nodes).detach()  # a shift of all scores changes nothing
    mass = (score - top[target]).exp()
    total = segment_sum(mass, target, nodes).clamp(min=1e-300)
    weight, value = mass / total[target], layer.messages(x)
    heads = [
        segment_sum(weight[:, h, None] * value[:, h][source], target, nodes) for h in range(value.size(1))
    ]  # one after the other: an edge has many values
    return torch.stack(heads, 1) + layer.bias.view_as(layer.value_bias), total.log() + top


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


def _changed(data: Data, *, far: bool) -> Data:
    """Return the graph with two thirds of its links, or some 100,000 of them, and with random features.

    Some rows are empty. With `far`, some entries are far away; they also raise what is taken for rounding.
    """
    links, x = require(data, "edge_index"), require(data, "x").detach()
    x = x.coalesce() if x.is_sparse else x
    values = x.values() if x.is_sparse else x
    row = x.indices()[0] if x.is_sparse else torch.arange(len(x), device=x.device)
    size, most = float(to_double(values).square().mean().sqrt()) or 1.0, float(values.abs().max()) or 1.0
    features = size * torch.randn(values.shape, generator=torch.Generator().manual_seed(0)).to(values.device)
    features[row % 5 == 0] = 0.0
    if far and x.is_sparse:  # the first entry of a row: the same are stored, so that wide features stay small
        first = torch.ones_like(row, dtype=torch.bool)
        first[1:] = row[1:] != row[:-1]
        features[(row % 5 == 1) & first] = FAR * most
    elif far:
        features[row % 5 == 1, 0] = FAR * most
    features = features.to(values if values.is_floating_point() else features)
    number = torch.arange(links.size(1), device=links.device)
    gone = (number % 3 == 0) | (number % max(1, len(number) // ENOUGH) != 0)
    changed = copied(delete_edges(data, gone))
    changed.x = with_values(x, features) if x.is_sparse else features
    return changed


def _takes_features(calls: list[LayerCall], graph: Data) -> bool:
    """Return whether the first layer was called with the features of the graph as they are."""
    given, x = calls[0].x if calls else None, require(graph, "x")
    if given is None or given.shape != x.shape:
        return False
    given, x = (part.to_dense() if part.is_sparse else part for part in (given, x))
    return torch.equal(given, x.to(given))


def _activation(runs: list[list[LayerCall]]) -> Activation | None:
    """Return the activation between two layers, or None if there is another function or other layers were called."""
    if any([call.layer for call in calls] != [call.layer for call in runs[0]] for calls in runs):
        return None
    if len(runs[0]) == 1:
        return identity
    act = match_activation(*((first.out, last.x) for first, last in runs))
    negative = act is not None and any(bool((first.out < 0).any()) for first, _ in runs)
    return act if negative else None  # most are the same on what is not negative


def _computed(calls: list[LayerCall], act: Activation, graph: Data, logits: Tensor) -> Chain | None:
    """Return the layers on a graph with the logits of the model; None if these differ by more than rounding."""
    x, links = require(graph, "x").detach(), require(graph, "edge_index")
    x = to_double(x.to_dense() if x.is_sparse else x)
    links = links[:, links[0] != links[1]].to(x.device)
    chain = run_layers([Layer.of(call.layer) for call in calls], act, x, links)
    eps = max(torch.finfo(part.dtype).eps for part in (logits, *(call.out for call in calls)))
    chain, logits = replace(chain, eps=eps), to_double(logits)
    own, given = (part - part.mean(1, keepdim=True) for part in (chain.logits, logits))
    slack = chain.slack()
    near = slack.amount + slack.share * given.abs().amax()
    return replace(chain, logits=logits) if bool(((own - given).abs() <= near).all()) else None


def _check_supported(calls: list[LayerCall], logits: Tensor, data: Data) -> None:
    """Raise `NoBoundError` unless a bound is known for these layers on this graph."""
    layers = [call.layer for call in calls]
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
    if not all(call.is_plain for call in calls):
        raise NoBoundError(
            "a layer has a residual connection or a hook inside, or is of a class that overrides a method of PyG's "
            "layer; no bound is known"
        )
    if any(part.dtype in HALF for part in (require(data, "x"), logits, *(call.out for call in calls))):
        raise NoBoundError(
            "the model computes in half precision, whose rounding no bound includes; certify model.float() on features "
            "in float32"
        )
    if not all(0 < layer.negative_slope <= 1 for layer in layers):
        raise NoBoundError("a layer's negative_slope is not above 0 and at most 1; no bound is known")
    if loops and not all(layer.add_self_loops for layer in layers):
        raise NoBoundError("the graph has self-loops and a layer does not replace them by its own; no bound is known")
    if len(edge_keys(links, int(data.num_nodes or 0)).unique()) != links.size(1):
        raise NoBoundError("some links of the graph have copies; call data.coalesce() first")
    if len(logits) != data.num_nodes or logits.size(1) != layers[-1].out_channels:
        raise NoBoundError("the logits are not the output of the last attention layer; no bound is known")
