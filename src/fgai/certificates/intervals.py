"""Certificate of the prediction for layers before the last: interval bounds through the later layers.

A perturbation |delta|_p <= R of the weights of one layer changes its output h_i by at most R |(u_j)_j|_q, entry by
entry, so h_i lies in a box. A monotone activation maps the ends of a box, a linear map W scales its radius by |W|, a
softmax gives w_j in [e^lo_j / (e^lo_j + sum_k e^hi_k), e^hi_j / (e^hi_j + sum_k e^lo_k)], k != j, and the sum is

    sum_j w'_j u'_j - w_j u_j = sum_j w_j (u'_j - u_j) + sum_j (w'_j - w_j) u'_j,  where sum_j (w'_j - w_j) = 0.

The bounds hold for chains of GATConv and GATv2Conv with an activation between them, and get loose as R grows. Each
layer is first computed with these formulas at R = 0. If the result differs from the output of the model, there is no
bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.gains import binary_logits
from fgai.attention import Attention, explaining_sites
from fgai.certificates.explanation import Norm
from fgai.certificates.layers import Activation, Layer, identity, match_activation, recorded_calls
from fgai.certificates.prediction import dual
from fgai.certificates.rounding import rounding
from fgai.devices import to_double
from fgai.graph import segment_max, segment_sum
from fgai.printing import short_repr
from fgai.reading import Reader, Reading

ROUNDING = 1e-3  # relative to the largest output of a layer


@dataclass(frozen=True)
class Box:
    """All tensors within `radius` of `middle`, entry by entry."""

    middle: Tensor
    radius: Tensor

    @classmethod
    def between(cls, low: Tensor, high: Tensor) -> Box:
        """Return the interval with these ends."""
        return cls((low + high) / 2, (high - low) / 2)

    @property
    def low(self) -> Tensor:
        """The lower end."""
        return self.middle - self.radius

    @property
    def high(self) -> Tensor:
        """The upper end."""
        return self.middle + self.radius

    def through(self, monotone: Callable[[Tensor], Tensor]) -> Box:
        """Return the image under a non-decreasing function."""
        return Box.between(monotone(self.low), monotone(self.high))

    def times(self, matrix: Tensor, bias: Tensor | None = None) -> Box:
        """Return an interval that contains the image under x -> x M^T + b.

        >>> Box(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5])).times(torch.tensor([[1.0, -1.0]])).high
        tensor([1.])
        """
        middle = self.middle @ matrix.t()
        return Box(middle if bias is None else middle + bias, self.radius @ matrix.t().abs())


@dataclass(frozen=True)
class IntervalBound:
    """Bounds on the prediction and on the attention of the last layer, under a perturbation of one earlier layer."""

    site: str
    tvd: Tensor  # [N], a bound on the TVD of the prediction
    class_kept: Tensor  # [N], where the class cannot change
    shift: Tensor  # [N], a bound on the l1 change of the explanation

    __repr__ = short_repr

    @property
    def vacuous(self) -> bool:
        """Whether no node has a certified class."""
        return not bool(self.class_kept.any())


def interval_bounds(read: Reader, data: Data, radius: float, norm: Norm = "l1") -> dict[str, IntervalBound | None]:
    """Bound the effect of perturbing each attention layer before the last.

    Args:
        read: Reader of the model, in evaluation mode, without accelerated layers.
        data: The graph.
        radius: Largest norm of the perturbation, for each node and head.
        norm: `l1`, `l2` or `linf`.

    Returns:
        The bound of each layer by its name; None if the model is not a chain of GATConv and GATv2Conv.

    >>> from torch_geometric.nn import GAT
    >>> data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [2, 2]]))
    >>> interval_bounds(Reader(GAT(3, 4, 2, 2).eval()), data, 0.01)["convs.0"].class_kept.shape
    torch.Size([3])
    """
    with torch.no_grad():
        reading, links = _links(read, data)
        *early, _ = explaining_sites(reading.attention)
        if links is None:
            return dict.fromkeys(early)
        return {site: _bound(site, reading, links, radius, norm) for site in early}


@dataclass(frozen=True)
class _Link:
    """One layer of the chain, with its input, its output and the activation that follows."""

    layer: Layer
    x: Tensor
    out: Tensor
    activation: Activation


def _links(read: Reader, data: Data) -> tuple[Reading, dict[str, _Link] | None]:
    """Return the layers by name if each input is an activation of the last output, and the last gives the logits."""
    modules = dict(read.model.named_modules())
    with recorded_calls(read.model) as calls:
        reading = read(data)
    sites = explaining_sites(reading.attention)
    if [modules.get(site) for site in sites] != [call.layer for call in calls]:
        return reading, None
    links: dict[str, _Link] = {}
    inputs = [call.x for call in calls]
    for site, call, following in zip(sites, calls, [*inputs[1:], reading.logits], strict=True):
        activation = match_activation((call.out, following))
        if not call.is_plain or call.x is None or activation is None:
            return reading, None
        if following is not reading.logits and not bool((call.out < 0).any()):  # most are the same without a negative
            return reading, None
        links[site] = _Link(Layer.of(call.layer), call.x, call.out, activation)
    is_chain = links[sites[-1]].activation is identity
    return reading, links if is_chain and all(_reproduces(links[s], reading.attention[s]) for s in sites) else None


def _reproduces(link: _Link, attention: Attention) -> bool:
    """Whether the formulas, without a perturbation, give the output of the layer with radius 0."""
    x, out = to_double(link.x), to_double(link.out)
    exact, _ = _layer(link.layer, Box(x, torch.zeros_like(x)), attention.double())
    if exact.middle.shape != link.out.shape:
        return False
    error = (exact.middle - out).abs() + exact.radius
    return bool(error.max() <= ROUNDING * link.out.abs().max().clamp(min=1e-12)) if len(error) else True


def _bound(site: str, reading: Reading, links: dict[str, _Link], radius: float, norm: Norm) -> IntervalBound:
    """Bound the effect of perturbing one layer: map its box through the later layers."""
    sites = list(links)
    attention, link = reading.attention[site].double(), links[site]
    value = link.layer.messages(to_double(link.x))
    push = radius * dual(value.index_select(0, attention.source), attention.target, attention.num_targets, norm)
    box = Box(to_double(link.out), link.layer.merge_heads(push)).through(link.activation)
    shift = push.new_zeros(len(push))
    for later in sites[sites.index(site) + 1 :]:
        box, shift = _layer(links[later].layer, box, reading.attention[later].double())
        box = box.through(links[later].activation)
    return _interval_bound(site, reading, box, shift)


def _interval_bound(site: str, reading: Reading, box: Box, shift: Tensor) -> IntervalBound:
    """Return the bounds that follow from a box of logits."""
    logits = to_double(binary_logits(reading))
    if logits.size(1) > box.middle.size(1):  # a single logit belongs to the second class; the first has logit 0
        box = Box(*(torch.cat([torch.zeros_like(part), part], dim=1) for part in (box.middle, box.radius)))
    change = Box(box.middle - logits, box.radius)
    predicted = logits.argmax(1, keepdim=True)
    slack = rounding(reading.logits.dtype) * torch.maximum(box.low.abs(), box.high.abs()).amax(1)
    others = box.high.scatter(1, predicted, -torch.inf).amax(1) + slack
    return IntervalBound(
        site,
        tvd=((change.high.amax(1) - change.low.amin(1)) / 4).tanh(),
        class_kept=box.low.gather(1, predicted)[:, 0] > others,
        shift=shift,
    )


def _layer(layer: Layer, x: Box, attention: Attention) -> tuple[Box, Tensor]:
    """Map a box through a layer; return the box of outputs and the l1 change of the weights."""
    weight = attention.weight.detach()
    bounds = softmax_bounds(_scores(layer, x, attention), attention.target, attention.num_targets)
    more, less = (bounds.high - weight).clamp(min=0), (weight - bounds.low).clamp(min=0)
    gain, loss = (segment_sum(part, attention.target, attention.num_targets) for part in (more, less))
    spare = torch.minimum(gain, loss)  # [N, H], the weight that can pass from one neighbour to another
    out = _weighted_sum(_per_head(x, layer.value, layer.value_bias), weight, spare, attention)
    return Box(layer.merge_heads(out.middle) + layer.bias, layer.merge_heads(out.radius)), 2 * spare.mean(1)


def _weighted_sum(value: Box, weight: Tensor, spare: Tensor, attention: Attention) -> Box:
    """Bound sum_j w_j u_j over a box of u, where at most `spare` of the weight is redistributed; [N, H, C]."""
    middle, radius = (part.index_select(0, attention.source) for part in (value.middle, value.radius))
    target, nodes = attention.target, attention.num_targets
    mean, spread = (segment_sum(weight.unsqueeze(2) * part, target, nodes) for part in (middle, radius))
    top, bottom = (segment_max(part, target, nodes) for part in (middle + radius, radius - middle))
    return Box(mean, spread + spare.unsqueeze(2) * (top + bottom))


def _per_head(x: Box, matrix: Tensor, bias: Tensor) -> Box:
    """Map a box through the matrix of each head; [N, F], [H, C, F], [H, C] -> [N, H, C]."""
    box = x.times(matrix.flatten(0, 1), bias.flatten())
    return Box(box.middle.view(-1, *bias.shape), box.radius.view(-1, *bias.shape))


def _scores(layer: Layer, x: Box, attention: Attention) -> Box:
    """Bound the scores of the edges; [E, H]. Those of GAT are linear in x inside the leaky ReLU."""
    if layer.att is None:
        return _add_ends(x.times(layer.source), x.times(layer.target), attention).through(layer.leaky)
    source, target = _per_head(x, layer.source, layer.value_bias), _per_head(x, layer.target, layer.target_bias)
    inner = _add_ends(source, target, attention).through(layer.leaky)
    return Box((inner.middle * layer.att).sum(2), (inner.radius * layer.att.abs()).sum(2))


def _add_ends(source: Box, target: Box, attention: Attention) -> Box:
    """Add the intervals of both ends of each edge."""
    middle, radius = (
        a.index_select(0, attention.source) + b.index_select(0, attention.target)
        for a, b in ((source.middle, target.middle), (source.radius, target.radius))
    )
    return Box(middle, radius)


def softmax_bounds(score: Box, target: Tensor, nodes: int) -> Box:
    """Bound the softmax weights of scores in a box; [E, H].

    >>> score = Box(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]]))
    >>> softmax_bounds(score, torch.tensor([0, 0]), 1).high.flatten()  # e / (1 + e) at most
    tensor([0.7311, 0.7311])
    """
    low = torch.sigmoid(score.low - _log_others(score.high, target, nodes))
    high = torch.sigmoid(score.high - _log_others(score.low, target, nodes))
    return Box.between(low, high)


def _log_others(score: Tensor, target: Tensor, nodes: int) -> Tensor:
    """Compute log sum_k exp(score_k) over the other edges k of the same target; -inf if there are none; [E, H].

    No subtraction cancels: for the largest entry, only the others are summed; for the others, the sum contains the
    largest entry.
    """
    position = torch.arange(len(target), device=target.device).view(-1, 1).expand_as(score)
    top = segment_max(score, target, nodes).index_select(0, target)
    ties = torch.where(score == top, position, len(target))
    first = -segment_max(-ties, target, nodes).index_select(0, target)  # among ties, the first counts as the largest
    largest = position == first
    rest = score.masked_fill(largest, -torch.inf)
    second = segment_max(rest, target, nodes)
    second = second.masked_fill(second.isinf(), 0.0).index_select(0, target)
    below = segment_sum((rest - second).exp(), target, nodes).index_select(0, target).log() + second
    own = (score - top).exp()
    above = (segment_sum(own, target, nodes).index_select(0, target) - own).clamp(min=1.0).log() + top
    return torch.where(largest, below, above)
