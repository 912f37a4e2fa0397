"""Features: where the class does not change if each feature of each node changes by at most a radius; GAT and GATv2.

With x in a box, values and scores are in intervals. A mean of values z_j with weights proportional to exp(s_j) is at
most the t for which

    sum_j exp(s_j) (z_j - t) = 0,  z_j at its upper end, s_j at its upper end where z_j > t and at its lower end else

because any other choice makes the sum smaller. The sum decreases in t, so bisection finds its root; the smallest mean
likewise. This is the best bound for independent intervals. The last layer is bounded by the sign of S (`deletions`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgai.certificates.chain import Chain, segment_max
from fgai.certificates.deletions import CELLS, least_term, least_values, span
from fgai.certificates.layers import Layer
from fgai.certificates.rounding import error_of_sum
from fgai.graph import degree, segment_sum

STEPS = 40  # of the bisection; its upper end is used, which is a valid bound


def certified_under_features(chain: Chain, radius: float) -> Tensor:
    """Return where no change of the features by at most `radius` changes the class; [N]."""
    low, high = chain.x - radius, chain.x + radius
    if chain.first is not None:
        low, high = (chain.act(end).flatten(1) for end in mean_bounds(chain.first, low, high, chain))
    last, source, target = chain.last, *_ends(chain.last, chain)
    slack = chain.slack(
        lambda form: chain.reach(form) + radius * form.abs().sum(-1), float(chain.x.abs().max()) + radius
    )
    y = slack.below(least_values(last, chain.prediction[target], low[source], high[source]))
    margin = torch.full((chain.nodes,), torch.inf, dtype=torch.double, device=low.device)
    for options in _cells(last, low, high, source, target):
        best = torch.stack([_margin(chain, *option, y, target) for option in options]).amax(0)
        margin = torch.minimum(margin, best)
    return margin > 0


def mean_bounds(layer: Layer, low: Tensor, high: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
    """Return bounds of the output of the first layer over a box of inputs; [N, H, C] each."""
    source, target = _ends(layer, chain)
    least, most = (end + layer.shift for end in span(layer.value, low, high))
    score = score_bounds(layer, low, high, source, target)
    alone = (degree(target, chain.nodes) == 0)[:, None, None]  # without neighbours the output is the bias
    ends = []
    for sign, value in ((-1.0, -least), (1.0, most)):
        heads = [
            sign * _largest_mean(value[:, h], score[0][:, h], score[1][:, h], source, target)
            for h in range(value.size(1))
        ]
        ends.append(torch.where(alone, chain.pre, torch.stack(heads, dim=1)))
    return ends[0], ends[1]


def score_bounds(layer: Layer, low: Tensor, high: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return bounds of the scores over a box of inputs; both ends of a self-loop are the same node; [E, H] each."""
    mine, theirs, both = (span(form, low, high) for form in (layer.source, layer.target, layer.source + layer.target))
    loop = (source == target).view(-1, *[1] * (mine[0].dim() - 1))
    inner = [torch.where(loop, b[target], a[source] + c[target]) for a, c, b in zip(mine, theirs, both, strict=True)]
    if layer.att is None:
        return layer.leaky(inner[0]), layer.leaky(inner[1])
    least, most = (layer.leaky(end + layer.inner) for end in inner)
    plus, minus = layer.att.clamp(min=0), layer.att.clamp(max=0)
    return (least * plus + most * minus).sum(2), (most * plus + least * minus).sum(2)


def _largest_mean(value: Tensor, low: Tensor, high: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return an upper bound of the means of one head; [N, C], [E], [E] -> [N, C]."""
    nodes, edge = len(value), value[source]
    top = segment_max(high, target, nodes)[target]
    small, large = ((end - top).exp()[:, None] for end in (low, high))
    right, left = segment_max(edge, target, nodes), -segment_max(-edge, target, nodes)
    for _ in range(STEPS):
        middle = (left + right) / 2
        gap = edge - middle[target]
        above = segment_sum(torch.where(gap > 0, large, small) * gap, target, nodes) > 0
        left, right = torch.where(above, middle, left), torch.where(above, right, middle)
    return right


def _cells(
    layer: Layer, low: Tensor, high: Tensor, source: Tensor, target: Tensor
) -> list[list[tuple[Tensor, Tensor]]]:
    """Return, for each cell of D, bounds of the exponents for two kappas; for GATv2 one cell with one bound."""
    if layer.att is not None:
        least, most = score_bounds(layer, low, high, source, target)
        return [[(least[:, 0], most[:, 0])]]
    p, d = (span(form[0], low, high) for form in (layer.source, layer.target))
    cells = []
    for i in range(CELLS):
        ends = [(d[0] + (d[1] - d[0]) * (i + j) / CELLS)[target] for j in (0, 1)]
        options = []
        for kappa in (1.0, layer.slope):
            least, most = (torch.stack([layer.leaky(end[source] + at) - kappa * at for at in ends]) for end in p)
            options.append((least.amin(0), most.amax(0)))
        cells.append(options)
    return cells


def _margin(chain: Chain, low: Tensor, high: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Return the least S over all classes, up to a positive factor; [N]."""
    top = segment_max(high, target, chain.nodes)[target]
    term = least_term(low - top, high - top, y)
    total, size = (segment_sum(part, target, chain.nodes) for part in (term, term.abs()))
    total = total - error_of_sum(degree(target, chain.nodes)[:, None], size)
    return total.scatter(1, chain.prediction[:, None], torch.inf).amin(1)


def _ends(layer: Layer, chain: Chain) -> tuple[Tensor, Tensor]:
    """Return the sources and targets of the edges, with the self-loops of the layer."""
    if not layer.loops:
        return chain.source, chain.target
    loop = torch.arange(chain.nodes, device=chain.source.device)
    return torch.cat([chain.source, loop]), torch.cat([chain.target, loop])
