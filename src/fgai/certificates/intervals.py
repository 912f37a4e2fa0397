"""The prediction's certificate for layers before the last, by intervals carried through the layers that follow.

A perturbation |delta|_p <= R of one layer's weights moves its output h_i by at most R |(u_j)_j|_q, entry by entry, so
h_i lies in a box. Boxes go through a monotone activation by their ends, through a linear map W by |W|, through a
softmax by w_j in [e^lo_j / (e^lo_j + sum_k e^hi_k), e^hi_j / (e^hi_j + sum_k e^lo_k)], k != j, and through the sum

    sum_j w'_j u'_j - w_j u_j = sum_j w_j (u'_j - u_j) + sum_j (w'_j - w_j) u'_j,  where sum_j (w'_j - w_j) = 0.

It holds for chains of GATConv and GATv2Conv with an activation between them, and gets loose as R grows. Each layer is
first computed by these formulas at R = 0: one that gives something else than the model did is not bounded.
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
)  # none of them falls anywhere
METHODS = ("forward", "message", "aggregate", "update", "edge_update")  # a layer that has others is not PyG's
ROUNDING = 1e-3  # relative to the largest output of a layer


@dataclass(frozen=True)
class Interval:
    """All tensors within `radius` of `middle`, entry by entry."""

    middle: Tensor
    radius: Tensor

    @classmethod
    def between(cls, low: Tensor, high: Tensor) -> Interval:
        """The box with these ends."""
        return cls((low + high) / 2, (high - low) / 2)

    @property
    def low(self) -> Tensor:
        """The least it holds."""
        return self.middle - self.radius

    @property
    def high(self) -> Tensor:
        """The most it holds."""
        return self.middle + self.radius

    def through(self, rising: Callable[[Tensor], Tensor]) -> Interval:
        """After a function that rises."""
        return Interval.between(rising(self.low), rising(self.high))

    def times(self, matrix: Tensor, bias: Tensor | None = None) -> Interval:
        """After x -> x M^T + b.

        >>> Interval(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5])).times(torch.tensor([[1.0, -1.0]])).high
        tensor([1.])
        """
        middle = self.middle @ matrix.t()
        return Interval(middle if bias is None else middle + bias, self.radius @ matrix.t().abs())


@dataclass(frozen=True)
class IntervalBound:
    """What a perturbation of one earlier layer can do to the answers, and to the attention of the last layer."""

    site: str
    tvd: Tensor  # [N], a bound on the TVD of the prediction
    kept: Tensor  # [N], where the class cannot change
    moved: Tensor  # [N], a bound on the l1 distance that the explanation moves

    @property
    def vacuous(self) -> bool:
        """It promises nothing: no node is sure of its class."""
        return not bool(self.kept.any())


def interval_bounds(read: Reader, data: Data, radius: float, norm: Norm = "l1") -> dict[str, IntervalBound | None]:
    """For each attention layer before the last, the bound at this radius; None where the model is not such a chain.

    >>> from torch_geometric.nn import GAT
    >>> data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [2, 2]]))
    >>> interval_bounds(Reader(GAT(3, 4, 2, 2).eval()), data, 0.01)["convs.0"].kept.shape
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
    """One layer of the chain: what came in, and what happens to what comes out."""

    layer: Any
    x: Tensor
    out: Tensor
    then: Callable[[Tensor], Tensor]


def _links(read: Reader, data: Data) -> tuple[Reading, dict[str, _Link] | None]:
    """The layers by site, if each sees only an activation of the one before, and the last says the logits."""
    seen: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
    modules = dict(read.model.named_modules())
    layers = [layer for layer in modules.values() if isinstance(layer, GATConv | GATv2Conv)]
    hooks = [layer.register_forward_hook(lambda *call: seen.append(call), with_kwargs=True) for layer in layers]
    try:
        reading = read(data)
    finally:
        for hook in hooks:
            hook.remove()
    sites = list(reading.attention)
    if len(seen) != len(sites) or any(modules.get(site) is not call[0] for site, call in zip(sites, seen, strict=True)):
        return reading, None
    inputs = [_only_x(layer, args, kwargs) for layer, args, kwargs, _ in seen]
    outputs = [out for *_, out in seen]
    nexts = [*inputs[1:], reading.logits]
    thens = [_activation(out, x) for out, x in zip(outputs, nexts, strict=True)]
    if any(x is None for x in inputs) or any(then is None for then in thens) or thens[-1] is not ACTIVATIONS[0]:
        return reading, None
    rows = zip(sites, seen, inputs, outputs, thens, strict=True)
    links = {site: _Link(call[0], x, out, then) for site, call, x, out, then in rows}  # pyright: ignore[reportArgumentType]
    return reading, links if all(_as_computed(links[site], reading.attention[site]) for site in sites) else None


def _as_computed(link: _Link, look: Attention) -> bool:
    """The formulas give, without a perturbation, what the layer gave, and nothing of its weight changes hands."""
    x = to_double(link.x)
    exact, _ = _layer(link.layer, Interval(x, torch.zeros_like(x)), look.double())
    if exact.middle.shape != link.out.shape:
        return False
    out = to_double(link.out)
    off = (exact.middle - out).abs() + exact.radius
    return bool(off.max() <= ROUNDING * out.abs().max().clamp(min=1e-12)) if len(off) else True


def _only_x(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The features that came in, if nothing else did and the layer is as PyG wrote it."""
    given = dict(zip(("x", "edge_index", "edge_attr", "size"), args, strict=False)) | kwargs
    plain = layer.res is None and not any(given.get(name) is not None for name in ("edge_attr", "size"))
    base: Any = GATConv if isinstance(layer, GATConv) else GATv2Conv
    plain &= all(getattr(type(layer), method) is getattr(base, method) for method in METHODS)
    plain &= isinstance(layer, GATv2Conv) or layer.lin is not None
    return given["x"] if plain and isinstance(given.get("x"), Tensor) else None


def _activation(out: Any, x: Tensor | None) -> Callable[[Tensor], Tensor] | None:
    if not isinstance(out, Tensor) or x is None or out.shape != x.shape:
        return None
    return next((f for f in ACTIVATIONS if torch.equal(f(out), x)), None)


def _bound(site: str, reading: Reading, links: dict[str, _Link], radius: float, norm: Norm) -> IntervalBound:
    sites = list(links)
    at = sites.index(site)
    look, link = reading.attention[site].double(), links[site]
    value = to_double(_values(link.layer, link.x))
    push = radius * dual(value.index_select(0, look.source), look.target, look.num_targets, norm)
    box = Interval(to_double(link.out), _heads(link.layer, push)).through(link.then)
    moved = push.new_zeros(len(push))
    for later in sites[at + 1 :]:
        box, moved = _layer(links[later].layer, box, reading.attention[later].double())
        box = box.through(links[later].then)
    logits = to_double(binary_logits(reading))
    if logits.size(1) > box.middle.size(1):  # a single logit is that of `yes`, and `no` has 0
        box = Interval(*(torch.cat([torch.zeros_like(part), part], dim=1) for part in (box.middle, box.radius)))
    change = Interval(box.middle - logits, box.radius)
    answer = logits.argmax(1, keepdim=True)
    others = box.high.scatter(1, answer, -torch.inf).amax(1)
    return IntervalBound(
        site,
        tvd=((change.high.amax(1) - change.low.amin(1)) / 4).tanh(),
        kept=box.low.gather(1, answer)[:, 0] > others,
        moved=moved,
    )


def _values(layer: Any, x: Tensor) -> Tensor:
    """What is summed, before it is weighted; [N, H, C]."""
    return _linear(layer)(x).view(-1, layer.heads, layer.out_channels)


def _linear(layer: Any) -> Any:
    return layer.lin if isinstance(layer, GATConv) else layer.lin_l


def _heads(layer: Any, value: Tensor) -> Tensor:
    """Side by side, or their mean; [N, H, C] -> [N, H C] or [N, C]."""
    return value.flatten(1) if layer.concat else value.mean(1)


def _layer(layer: Any, x: Interval, look: Attention) -> tuple[Interval, Tensor]:
    """One GATConv or GATv2Conv on a box: where its output lies, and how far its weights move at each node."""
    weight = look.weight.detach()
    score = (_gat_scores if isinstance(layer, GATConv) else _gatv2_scores)(layer, x, look)
    bounds = softmax_bounds(score, look.target, look.num_targets)
    more, less = (bounds.high - weight).clamp(min=0), (weight - bounds.low).clamp(min=0)
    spare = torch.minimum(*(segment_sum(way, look.target, look.num_targets) for way in (more, less)))  # [N, H]
    linear = _linear(layer)
    value = _per_head(layer, x.times(to_double(linear.weight), _double(linear.bias)))
    out = _sum(value, weight, spare, look)
    bias = 0.0 if layer.bias is None else to_double(layer.bias)
    return Interval(_heads(layer, out.middle) + bias, _heads(layer, out.radius)), 2 * spare.mean(1)


def _sum(value: Interval, weight: Tensor, spare: Tensor, look: Attention) -> Interval:
    """sum_j w_j u_j over a box of values, where at most `spare` of the weight changes hands; [N, H, C]."""
    middle, reach = (part.index_select(0, look.source) for part in (value.middle, value.radius))
    still = [segment_sum(weight.unsqueeze(2) * part, look.target, look.num_targets) for part in (middle, reach)]
    top, bottom = (segment_max(part, look.target, look.num_targets) for part in (middle + reach, reach - middle))
    return Interval(still[0], still[1] + spare.unsqueeze(2) * (top + bottom))


def _per_head(layer: Any, box: Interval) -> Interval:
    shape = (-1, layer.heads, layer.out_channels)
    return Interval(box.middle.view(shape), box.radius.view(shape))


def _double(value: Tensor | None) -> Tensor | None:
    return None if value is None else to_double(value.detach())


def _gat_scores(layer: Any, x: Interval, look: Attention) -> Interval:
    """leaky(a_s . W x_j + a_t . W x_i): linear in x before the leak; [E, H]."""
    matrix = to_double(layer.lin.weight).view(layer.heads, layer.out_channels, -1)
    source, target = (
        x.times(torch.einsum("hc,hcf->hf", to_double(att[0]), matrix)) for att in (layer.att_src, layer.att_dst)
    )
    return _edges(source, target, look).through(lambda v: functional.leaky_relu(v, layer.negative_slope))


def _gatv2_scores(layer: Any, x: Interval, look: Attention) -> Interval:
    """The sum a . leaky(W_l x_j + W_r x_i); [E, H]."""
    source, target = (
        _per_head(layer, x.times(to_double(linear.weight), _double(linear.bias)))
        for linear in (layer.lin_l, layer.lin_r)
    )
    inner = _edges(source, target, look).through(lambda v: functional.leaky_relu(v, layer.negative_slope))
    att = to_double(layer.att)
    return Interval((inner.middle * att).sum(2), (inner.radius * att.abs()).sum(2))


def _edges(source: Interval, target: Interval, look: Attention) -> Interval:
    """The sum of what both ends of each edge say."""
    middle, radius = (
        a.index_select(0, look.source) + b.index_select(0, look.target)
        for a, b in ((source.middle, target.middle), (source.radius, target.radius))
    )
    return Interval(middle, radius)


def softmax_bounds(score: Interval, target: Tensor, nodes: int) -> Interval:
    """Where the weights lie that scores in a box can have; [E, H].

    >>> score = Interval(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]]))
    >>> softmax_bounds(score, torch.tensor([0, 0]), 1).high.flatten()  # e / (1 + e) at most
    tensor([0.7311, 0.7311])
    """
    low = torch.sigmoid(score.low - _log_others(score.high, target, nodes))
    high = torch.sigmoid(score.high - _log_others(score.low, target, nodes))
    return Interval.between(low, high)


def _log_others(score: Tensor, target: Tensor, nodes: int) -> Tensor:
    """The logarithm of sum_k exp(score_k) over the other edges k of the same target; -inf where there are none; [E, H].

    Nothing that matters is taken from a sum: the largest entry's own term is left out before the others are added up,
    and every other entry's sum holds the largest one.
    """
    place = torch.arange(len(target), device=target.device).view(-1, 1).expand_as(score)
    top = segment_max(score, target, nodes).index_select(0, target)
    ties = torch.where(score == top, place, len(target))
    first = -segment_max(-ties, target, nodes).index_select(0, target)  # of equal ones the first is the largest
    largest = place == first
    rest = score.masked_fill(largest, -torch.inf)
    second = segment_max(rest, target, nodes)
    second = second.masked_fill(second.isinf(), 0.0).index_select(0, target)
    below = segment_sum((rest - second).exp(), target, nodes).index_select(0, target).log() + second
    own = (score - top).exp()
    above = (segment_sum(own, target, nodes).index_select(0, target) - own).clamp(min=1.0).log() + top
    return torch.where(largest, below, above)
