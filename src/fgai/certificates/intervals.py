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
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv

from fgai.adversaries.gains import binary_logits
from fgai.attention import Attention
from fgai.certificates.explanation import Norm
from fgai.certificates.prediction import dual
from fgai.devices import to_double
from fgai.graph import segment_max, segment_sum
from fgai.reading import Reader, Reading

ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda h: h,
    functional.elu,
    functional.relu,
    functional.leaky_relu,
    torch.tanh,
    torch.sigmoid,
)  # all are non-decreasing
METHODS = ("forward", "message", "aggregate", "update", "edge_update")  # a layer that overrides one is not bounded
ROUNDING = 1e-3  # relative to the largest output of a layer


@dataclass(frozen=True)
class Interval:
    """All tensors within `radius` of `middle`, entry by entry."""

    middle: Tensor
    radius: Tensor

    @classmethod
    def between(cls, low: Tensor, high: Tensor) -> Interval:
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

    def through(self, monotone: Callable[[Tensor], Tensor]) -> Interval:
        """Return the image under a non-decreasing function."""
        return Interval.between(monotone(self.low), monotone(self.high))

    def times(self, matrix: Tensor, bias: Tensor | None = None) -> Interval:
        """Return an interval that contains the image under x -> x M^T + b.

        >>> Interval(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5])).times(torch.tensor([[1.0, -1.0]])).high
        tensor([1.])
        """
        middle = self.middle @ matrix.t()
        return Interval(middle if bias is None else middle + bias, self.radius @ matrix.t().abs())


@dataclass(frozen=True)
class IntervalBound:
    """Bounds on the prediction and on the attention of the last layer, under a perturbation of one earlier layer."""

    site: str
    tvd: Tensor  # [N], a bound on the TVD of the prediction
    class_kept: Tensor  # [N], where the class cannot change
    shift: Tensor  # [N], a bound on the l1 change of the explanation

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
        *early, _ = reading.attention
        if links is None:
            return dict.fromkeys(early)
        return {site: _bound(site, reading, links, radius, norm) for site in early}


@dataclass(frozen=True)
class _Link:
    """One layer of the chain, with its input, its output and the activation that follows."""

    layer: Any
    x: Tensor
    out: Tensor
    activation: Callable[[Tensor], Tensor]


def _links(read: Reader, data: Data) -> tuple[Reading, dict[str, _Link] | None]:
    """Return the layers by name if each input is an activation of the last output, and the last gives the logits."""
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
    modules = dict(read.model.named_modules())
    layers = [layer for layer in modules.values() if isinstance(layer, GATConv | GATv2Conv)]
    hooks = [layer.register_forward_hook(lambda *call: calls.append(call), with_kwargs=True) for layer in layers]
    try:
        reading = read(data)
    finally:
        for hook in hooks:
            hook.remove()
    sites = list(reading.attention)
    if len(calls) != len(sites) or any(modules.get(s) is not call[0] for s, call in zip(sites, calls, strict=True)):
        return reading, None
    inputs = [_plain_input(layer, args, kwargs) for layer, args, kwargs, _ in calls]
    outputs = [out for *_, out in calls]
    nexts = [*inputs[1:], reading.logits]
    activations = [_match_activation(out, x) for out, x in zip(outputs, nexts, strict=True)]
    if any(part is None for part in (*inputs, *activations)) or activations[-1] is not ACTIVATIONS[0]:
        return reading, None
    rows = zip(sites, calls, inputs, outputs, activations, strict=True)
    links = {site: _Link(call[0], x, out, then) for site, call, x, out, then in rows}  # pyright: ignore[reportArgumentType]
    return reading, links if all(_reproduces(links[site], reading.attention[site]) for site in sites) else None


def _reproduces(link: _Link, attention: Attention) -> bool:
    """Whether the formulas, without a perturbation, give the output of the layer with radius 0."""
    x, out = to_double(link.x), to_double(link.out)
    exact, _ = _layer(link.layer, Interval(x, torch.zeros_like(x)), attention.double())
    if exact.middle.shape != link.out.shape:
        return False
    error = (exact.middle - out).abs() + exact.radius
    return bool(error.max() <= ROUNDING * link.out.abs().max().clamp(min=1e-12)) if len(error) else True


def _plain_input(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the input features, or None if the layer has other inputs or overrides methods of PyG."""
    given = dict(zip(("x", "edge_index", "edge_attr", "size"), args, strict=False)) | kwargs
    plain = layer.res is None and not any(given.get(name) is not None for name in ("edge_attr", "size"))
    base: Any = GATConv if isinstance(layer, GATConv) else GATv2Conv
    plain &= all(getattr(type(layer), method) is getattr(base, method) for method in METHODS)
    plain &= isinstance(layer, GATv2Conv) or layer.lin is not None
    return given["x"] if plain and isinstance(given.get("x"), Tensor) else None


def _match_activation(out: Any, x: Tensor | None) -> Callable[[Tensor], Tensor] | None:
    """Return the activation that maps `out` to `x`, or None."""
    if not isinstance(out, Tensor) or x is None or out.shape != x.shape:
        return None
    return next((f for f in ACTIVATIONS if torch.equal(f(out), x)), None)


def _bound(site: str, reading: Reading, links: dict[str, _Link], radius: float, norm: Norm) -> IntervalBound:
    """Bound the effect of perturbing one layer: map its box through the later layers."""
    sites = list(links)
    attention, link = reading.attention[site].double(), links[site]
    value = to_double(_values(link.layer, link.x))
    push = radius * dual(value.index_select(0, attention.source), attention.target, attention.num_targets, norm)
    box = Interval(to_double(link.out), _merge_heads(link.layer, push)).through(link.activation)
    shift = push.new_zeros(len(push))
    for later in sites[sites.index(site) + 1 :]:
        box, shift = _layer(links[later].layer, box, reading.attention[later].double())
        box = box.through(links[later].activation)
    return _interval_bound(site, reading, box, shift)


def _interval_bound(site: str, reading: Reading, box: Interval, shift: Tensor) -> IntervalBound:
    """Return the bounds that follow from a box of logits."""
    logits = to_double(binary_logits(reading))
    if logits.size(1) > box.middle.size(1):  # a single logit belongs to the second class; the first has logit 0
        box = Interval(*(torch.cat([torch.zeros_like(part), part], dim=1) for part in (box.middle, box.radius)))
    change = Interval(box.middle - logits, box.radius)
    predicted = logits.argmax(1, keepdim=True)
    others = box.high.scatter(1, predicted, -torch.inf).amax(1)
    return IntervalBound(
        site,
        tvd=((change.high.amax(1) - change.low.amin(1)) / 4).tanh(),
        class_kept=box.low.gather(1, predicted)[:, 0] > others,
        shift=shift,
    )


def _values(layer: Any, x: Tensor) -> Tensor:
    """Return the value vectors u, before weighting; [N, H, C]."""
    return _linear(layer)(x).view(-1, layer.heads, layer.out_channels)


def _linear(layer: Any) -> Any:
    """Return the linear map of the value vectors."""
    return layer.lin if isinstance(layer, GATConv) else layer.lin_l


def _merge_heads(layer: Any, value: Tensor) -> Tensor:
    """Concatenate or average the heads, as the layer does; [N, H, C] -> [N, H C] or [N, C]."""
    return value.flatten(1) if layer.concat else value.mean(1)


def _layer(layer: Any, x: Interval, attention: Attention) -> tuple[Interval, Tensor]:
    """Map a box through a GATConv or GATv2Conv; return the box of outputs and the l1 change of the weights."""
    weight = attention.weight.detach()
    score = (_gat_scores if isinstance(layer, GATConv) else _gatv2_scores)(layer, x, attention)
    bounds = softmax_bounds(score, attention.target, attention.num_targets)
    more, less = (bounds.high - weight).clamp(min=0), (weight - bounds.low).clamp(min=0)
    gain, loss = (segment_sum(part, attention.target, attention.num_targets) for part in (more, less))
    spare = torch.minimum(gain, loss)  # [N, H], the weight that can pass from one neighbour to another
    linear = _linear(layer)
    value = _split_heads(layer, x.times(to_double(linear.weight), _double(linear.bias)))
    out = _weighted_sum(value, weight, spare, attention)
    bias = 0.0 if layer.bias is None else to_double(layer.bias)
    return Interval(_merge_heads(layer, out.middle) + bias, _merge_heads(layer, out.radius)), 2 * spare.mean(1)


def _weighted_sum(value: Interval, weight: Tensor, spare: Tensor, attention: Attention) -> Interval:
    """Bound sum_j w_j u_j over a box of u, where at most `spare` of the weight is redistributed; [N, H, C]."""
    middle, radius = (part.index_select(0, attention.source) for part in (value.middle, value.radius))
    target, nodes = attention.target, attention.num_targets
    mean, spread = (segment_sum(weight.unsqueeze(2) * part, target, nodes) for part in (middle, radius))
    top, bottom = (segment_max(part, target, nodes) for part in (middle + radius, radius - middle))
    return Interval(mean, spread + spare.unsqueeze(2) * (top + bottom))


def _split_heads(layer: Any, box: Interval) -> Interval:
    """Reshape [N, H C] to [N, H, C]."""
    shape = (-1, layer.heads, layer.out_channels)
    return Interval(box.middle.view(shape), box.radius.view(shape))


def _double(value: Tensor | None) -> Tensor | None:
    """Convert an optional bias to float64."""
    return None if value is None else to_double(value.detach())


def _gat_scores(layer: Any, x: Interval, attention: Attention) -> Interval:
    """Bound leaky(a_s . W x_j + a_t . W x_i), which is linear in x inside `leaky`; [E, H]."""
    matrix = to_double(layer.lin.weight).view(layer.heads, layer.out_channels, -1)
    source, target = (
        x.times(torch.einsum("hc,hcf->hf", to_double(att[0]), matrix)) for att in (layer.att_src, layer.att_dst)
    )
    return _add_ends(source, target, attention).through(lambda v: functional.leaky_relu(v, layer.negative_slope))


def _gatv2_scores(layer: Any, x: Interval, attention: Attention) -> Interval:
    """Bound a . leaky(W_l x_j + W_r x_i); [E, H]."""
    source, target = (
        _split_heads(layer, x.times(to_double(linear.weight), _double(linear.bias)))
        for linear in (layer.lin_l, layer.lin_r)
    )
    inner = _add_ends(source, target, attention).through(lambda v: functional.leaky_relu(v, layer.negative_slope))
    att = to_double(layer.att)
    return Interval((inner.middle * att).sum(2), (inner.radius * att.abs()).sum(2))


def _add_ends(source: Interval, target: Interval, attention: Attention) -> Interval:
    """Add the intervals of both ends of each edge."""
    middle, radius = (
        a.index_select(0, attention.source) + b.index_select(0, attention.target)
        for a, b in ((source.middle, target.middle), (source.radius, target.radius))
    )
    return Interval(middle, radius)


def softmax_bounds(score: Interval, target: Tensor, nodes: int) -> Interval:
    """Bound the softmax weights of scores in a box; [E, H].

    >>> score = Interval(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]]))
    >>> softmax_bounds(score, torch.tensor([0, 0]), 1).high.flatten()  # e / (1 + e) at most
    tensor([0.7311, 0.7311])
    """
    low = torch.sigmoid(score.low - _log_others(score.high, target, nodes))
    high = torch.sigmoid(score.high - _log_others(score.low, target, nodes))
    return Interval.between(low, high)


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
