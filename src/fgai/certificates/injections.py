"""Injections: where the class does not change whatever the features of new nodes in a box; two GATConv layers.

1. The first layer takes means. So the state of any node, injected or not, is in act(W box + b): the box contains all
   features, and a mean of points of a convex set is in the set. The score p and the value y of an injected node in the
   last layer are linear in its state, so constants of the model bound them: y >= lambda p - S(lambda) for any lambda.
2. As in `deletions`, the sign of logit_c* - logit_c is that of S = sum_j exp(leaky(p_j + D)) y_j. Injected nodes add
   terms; m times the least term bounds them. The p and y of old neighbours do not change unless injected nodes are
   linked to them, too; these are taken to be the `neighbours` that lower S most.
3. In the first layer of v (or of such a neighbour) with normaliser Z and output o, injected scores s_i and values z_i
   give o' - o = sum_i e^s_i (z_i - o) / (Z + sum_i e^s_i). m equal nodes are the worst: if r is the largest ratio, then
   sum_i e^s_i (z_i - o - r) <= r Z is tight where each summand is largest, the same for all i. Lines
   z + lambda a <= S(lambda) bound the joint range of (s, z), for each cell of a, the linear part of the score.

States are bounded by intervals. For models trained without such bounds in mind, few or no nodes are certified.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fgai.certificates.chain import Chain, NoBoundError, segment_max
from fgai.certificates.deletions import edge_values, least_term, least_values, most_negative, span
from fgai.certificates.layers import Layer, identity
from fgai.certificates.perturbation_sets import Injection
from fgai.certificates.rounding import Slack, error_of_sum
from fgai.graph import degree, segment_sum
from fgai.topk import effective_k

CELLS, FINE = 16, 64  # cells of D, and of an injected node's score
NEAR = 1e-4  # scores that differ by less, relative to their sizes, may rank in any order


@dataclass(frozen=True)
class StateBounds:
    """Bounds of the state of any node of any graph whose features are in the box."""

    low: Tensor  # [H, C], before the activation
    high: Tensor  # [H, C]
    score: tuple[float, float]  # of p in the last layer
    shared: tuple[float, float]  # of D
    margin: Tensor  # [FINE, C, C], the least y of class c against c' less `slack`, by cell of p, at most 0
    slack: Slack

    @classmethod
    def of(cls, chain: Chain, injection: Injection) -> StateBounds:
        """Return the bounds for the two layers of a chain."""
        first, last = two_layers(chain)
        low, high = first.shift - support(-first.value, injection), first.shift + support(first.value, injection)
        least, most = (chain.act(end).flatten() for end in (low, high))
        p, d = (_ends(span(form[0], least[None], most[None])) for form in (last.source, last.target))
        value, shift, q = last.value[0], last.shift[0], last.source[0]
        pair = value[:, None] - value  # [C, C, K]
        slopes = _slopes(float(pair.norm(dim=2).mean() / q.norm().clamp(min=1e-12)), q)
        forms = slopes[:, None, None, None] * q - pair
        worst = span(forms, least[None], most[None])[1][0] - (shift[:, None] - shift)  # [L, C, C]
        start = torch.linspace(*p, FINE + 1, dtype=q.dtype, device=q.device)[:-1]
        line = slopes[:, None, None, None] * start[:, None, None] - worst[:, None]
        reach = lambda form: torch.maximum(support(form, injection), support(-form, injection))  # noqa: E731
        slack = chain.slack(reach, max(map(abs, injection.box)))  # the box contains the features of the graph
        return cls(low, high, p, d, slack.below(line.amax(0)).clamp(max=0), slack)

    def term(self, last: Layer, d: Tensor, kappa: float, prediction: Tensor, top: Tensor) -> Tensor:
        """Return the least exp(leaky(p + D) - kappa D - top) y of one injected node, at most 0; [N, C]."""
        ends = torch.linspace(*self.score, FINE + 1, dtype=d.dtype, device=d.device)[1:]
        worst = d.new_zeros(len(d), self.margin.size(1))
        for end, margin in zip(ends, self.margin, strict=True):
            size = (last.leaky(end + d) - kappa * d - top).exp()
            worst = torch.minimum(worst, size[:, None] * margin[prediction])
        return worst


def certified_under_injection(chain: Chain, injection: Injection) -> Tensor:
    """Return where no injection inside the set changes the class; [N]."""
    first, last = two_layers(chain)
    check_features(chain, injection)
    bounds = StateBounds.of(chain, injection)
    low, high = injected_states(chain, first, bounds, injection)
    p_low, p_high = (end.clamp(*bounds.score) for end in span(last.source[0], low, high))
    d_low, d_high = (end.clamp(*bounds.shared) for end in span(last.target[0], low, high))
    own_y = bounds.slack.below(least_values(last, chain.prediction, low, high))
    margin = torch.full((chain.nodes,), torch.inf, dtype=torch.double, device=chain.x.device)
    for i in range(CELLS):
        d = [d_low + (d_high - d_low) * (i + j) / CELLS for j in (0, 1)]
        options = [
            _margin(chain, injection, bounds, (p_low, p_high), own_y, (low, high), d, k) for k in (1.0, last.slope)
        ]
        margin = torch.minimum(margin, torch.stack(options).amax(0))
    return margin > 0


def certified_members(chain: Chain, injection: Injection, k: int) -> Tensor:
    """Return the share of the top k that no injection evicts if new nodes are linked to no neighbour; [N]."""
    first, last = two_layers(chain)
    bounds = StateBounds.of(chain, injection)
    p_low, p_high = span(last.source[0], *injected_states(chain, first, bounds, injection))
    score, target, nodes = chain.hidden @ last.source[0], chain.target, chain.nodes
    p = score[chain.source]
    all_nodes = torch.arange(nodes, device=target.device)
    near = NEAR * (1 + score.abs().max() + max(map(abs, bounds.shared)))
    strongest = bounds.score[1] + near
    above = at_least(p, target, p - near, target, nodes) - 1  # old neighbours that may rank before it, also by rounding
    worst = above + (p_high[target] + near >= p).long() + injection.nodes * (strongest >= p).long()
    own = at_least(p, target, p_low - near, all_nodes, nodes) + injection.nodes * (strongest >= p_low).long()
    size = degree(target, nodes) + 1
    before = at_least(p, target, p - near, target, nodes) - 1 + (score[target] >= p - near).long()
    mine = at_least(p, target, score - near, all_nodes, nodes)
    remaining = segment_sum(((before < effective_k(k, size)[target]) & (worst < k)).long(), target, nodes)
    return (remaining + ((mine < effective_k(k, size)) & (own < k)).long()) / effective_k(k, size).double()


def two_layers(chain: Chain) -> tuple[Layer, Layer]:
    """Return both layers; raise `NoBoundError` unless they are GATConv with self-loops."""
    first, last = chain.first, chain.last
    if first is None:
        raise NoBoundError("bounds against injected nodes are known for two layers, and the model has one")
    if first.att is not None or last.att is not None:
        raise NoBoundError(
            "in GATv2Conv the score of an injected node depends on both ends inside the leaky ReLU; interval bounds "
            "certify nothing, and no better bounds are known"
        )
    if not (first.loops and last.loops):
        raise NoBoundError("bounds against injected nodes are known for layers that add self-loops")
    return first, last


def injected_states(chain: Chain, first: Layer, bounds: StateBounds, injection: Injection) -> tuple[Tensor, Tensor]:
    """Return bounds of the state of each node when `injection.nodes` nodes are linked to it; [N, K] each."""
    a_low, a_high = -support(-first.source, injection), support(first.source, injection)  # [H]
    scale = first.value.norm(dim=2) / first.source.norm(dim=1, keepdim=True).clamp(min=1e-12)  # [H, C]
    slopes = _slopes(1.0, first.value)[:, None, None] * scale  # [L, H, C]
    reach = chain.x @ first.target.t()
    ends = []
    for sign in (1.0, -1.0):
        forms = sign * first.value + slopes[..., None] * first.source[:, None]
        bound, best = support(forms, injection), torch.zeros_like(chain.pre)
        for i in range(FINE):
            low, high = (a_low + (a_high - a_low) * (i + j) / FINE for j in (0, 1))
            value = (bound - slopes * low[:, None]).amin(0) + sign * first.shift
            mass = (first.leaky(high + reach) - chain.normal + math.log(injection.nodes)).sigmoid()
            best = torch.maximum(best, mass.unsqueeze(2) * (value - sign * chain.pre))
        ends.append(chain.pre + sign * best)
    high, low = ends
    low = torch.maximum(low, torch.minimum(bounds.low, chain.pre))
    high = torch.minimum(high, torch.maximum(bounds.high, chain.pre))
    return chain.act(low).flatten(1), chain.act(high).flatten(1)


def support(form: Tensor, injection: Injection) -> Tensor:
    """Return the largest form . x over the rows that the attacker may give to a node; [..., F] -> [...].

    >>> form = torch.tensor([1.0, -2.0, 3.0])
    >>> support(form, Injection(1, (0.0, 1.0))), support(form, Injection(1, (0.0, 1.0), ones=1))
    (tensor(4.), tensor(3.))
    """
    low, high = injection.box
    gain = (high - low) * form.clamp(min=0)
    if injection.ones is not None:
        gain = gain.topk(min(injection.ones, form.size(-1)), dim=-1).values
    return low * form.sum(-1) + gain.sum(-1)


def check_features(chain: Chain, injection: Injection) -> None:
    """Raise `NoBoundError` unless the set contains the features of the graph."""
    (low, high), least, most = injection.box, float(chain.x.min()), float(chain.x.max())
    if not least >= low or not most <= high:
        raise NoBoundError(
            f"the features of the graph are between {least:g} and {most:g}, outside the box {injection.box}; give a "
            "box that contains them"
        )
    if injection.ones is not None:
        raised = float((chain.x - low).sum(1).max()) / (high - low)
        if raised > injection.ones:
            raise NoBoundError(
                f"a row of the graph has {raised:g} ones, more than ones={injection.ones}; give a number that "
                "contains all rows"
            )


def at_least(value: Tensor, index: Tensor, least: Tensor, where: Tensor, num: int) -> Tensor:
    """Return the number of entries of segment `where` with a value of `least` or more; [E], [E], [B], [B] -> [B].

    >>> at_least(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0, 0, 1]), torch.tensor([2.0]), torch.tensor([0]), 2)
    tensor([1])
    """
    if len(value) == 0:
        return torch.zeros_like(where)
    low, high = value.min(), value.max()
    unit = lambda part: ((part - low) / (high - low).clamp(min=1e-300)).clamp(-0.25, 1.25).double()  # noqa: E731
    keys = (2 * index + unit(value)).sort().values
    return degree(index, num).cumsum(0)[where] - torch.searchsorted(keys, 2 * where + unit(least))


def _margin(
    chain: Chain,
    injection: Injection,
    bounds: StateBounds,
    own: tuple[Tensor, Tensor],
    own_y: Tensor,
    states: tuple[Tensor, Tensor],
    cell: list[Tensor],
    kappa: float,
) -> Tensor:
    """Return the least S over all classes in a cell of D, up to a positive factor; [N]."""
    last, source, target, nodes = chain.last, chain.source, chain.target, chain.nodes

    def ends(low: Tensor, high: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        both = [torch.stack([last.leaky(p + d[at]) - kappa * d[at] for d in cell]) for p in (low, high)]
        return both[0].amin(0), both[1].amax(0)

    p, loop = (chain.hidden @ last.source[0])[source], torch.arange(nodes, device=source.device)
    edge, mine = ends(p, p, target), ends(*own, loop)
    top = torch.maximum(segment_max(edge[1], target, nodes), mine[1])
    edge_y = bounds.slack.below(edge_values(chain, chain.prediction))
    term = least_term(edge[0] - top[target], edge[1] - top[target], edge_y)
    own_term = least_term(mine[0] - top, mine[1] - top, own_y)
    if injection.neighbours:
        touched = ends(torch.minimum(own[0][source], p), torch.maximum(own[1][source], p), target)
        y = bounds.slack.below(least_values(last, chain.prediction[target], states[0][source], states[1][source]))
        worst = least_term(touched[0] - top[target], touched[1] - top[target], torch.minimum(y, edge_y))
        chosen = most_negative(worst - term, target, nodes, injection.neighbours)
        term = torch.where(chosen, worst, term)
    # exp(leaky(p + D) - kappa D) decreases in D for kappa = 1 and increases for kappa = slope
    new = injection.nodes * bounds.term(last, cell[0] if kappa == 1.0 else cell[1], kappa, chain.prediction, top)
    total, size = (segment_sum(f(term), target, nodes) + f(own_term) + f(new) for f in (identity, torch.abs))
    total = total - error_of_sum(degree(target, nodes)[:, None], size)
    return total.scatter(1, chain.prediction[:, None], torch.inf).amin(1)


def _ends(span: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Return an interval as two floats."""
    return float(span[0]), float(span[1])


def _slopes(scale: float, like: Tensor) -> Tensor:
    """Return the slopes lambda that are tried; [L]."""
    return torch.cat([torch.zeros(1), scale * torch.logspace(-1.5, 1.5, 11)]).to(like)
