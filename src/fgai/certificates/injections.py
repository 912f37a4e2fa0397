"""Injected nodes: where the class stays whatever their features in a box, for two layers of GATConv with self-loops.

1. The first layer takes means, so the state of any node, injected or not, however linked, lies in act(W box + b): the
   box holds all features, and a mean of points of a convex set is in it. An injected node's score p and value y in the
   last layer are linear in that state, so constants of the model bound them: y >= lambda p - S(lambda), any lambda.
2. As in `deletions`, the sign of logit_c* - logit_c is that of S = sum_j exp(leaky(p_j + D)) y_j. Injected nodes add
   terms; the least of one such term, m times, bounds them all. Old neighbours' p and y stay unless they are touched;
   the `neighbours` touched ones are those that harm most.
3. First layer of v (and of a touched neighbour) with normaliser Z and output o: injected scores s_i and values z_i give
   o' - o = sum_i e^s_i (z_i - o) / (Z + sum_i e^s_i). m equal nodes are the worst: if r is the largest ratio, then
   sum_i e^s_i (z_i - o - r) <= r Z is tight where each summand is largest, the same for all i. Lines
   z + lambda a <= S(lambda) bound the joint range of (s, z), cell by cell of a, the score's linear part.

States are bounded by intervals. For models trained without regard to it the result is mostly empty, and says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fgai.certificates.chain import Chain, Layer, NoBoundError, segment_max
from fgai.certificates.deletions import SLACK, edge_values, least_values, span, weighed, worst_few
from fgai.certificates.threats import Injection
from fgai.graph import degree, segment_sum
from fgai.topk import effective_k

CELLS, FINE = 16, 64  # cells of D, and of an injected node's score


@dataclass(frozen=True)
class Universe:
    """What holds for the state of every node of every graph whose features lie in the box."""

    low: Tensor  # [H, C], before the activation
    high: Tensor  # [H, C]
    score: tuple[float, float]  # of p in the last layer
    shared: tuple[float, float]  # of D
    speaks: Tensor  # [FINE, C, C], the least value for class c against c', by cell of p

    @classmethod
    def of(cls, chain: Chain, box: tuple[float, float]) -> Universe:
        """For the two layers of this chain."""
        first, last = two_layers(chain)
        low, high = first.shift - support(-first.value, box), first.shift + support(first.value, box)
        least, most = (chain.act(end).flatten() for end in (low, high))
        p, d = (_ends(span(form[0], least[None], most[None])) for form in (last.source, last.target))
        value, shift, q = last.value[0], last.shift[0], last.source[0]
        pair = value[:, None] - value  # [C, C, K]
        slopes = _slopes(float(pair.norm(dim=2).mean() / q.norm().clamp(min=1e-12)), q)
        forms = slopes[:, None, None, None] * q - pair
        worst = span(forms, least[None], most[None])[1][0] - (shift[:, None] - shift)  # [L, C, C]
        start = torch.linspace(*p, FINE + 1, dtype=q.dtype, device=q.device)[:-1]
        line = slopes[:, None, None, None] * start[:, None, None] - worst[:, None]
        return cls(low, high, p, d, line.amax(0).clamp(max=0))

    def term(self, last: Layer, d: Tensor, kappa: float, answer: Tensor, top: Tensor) -> Tensor:
        """The least exp(leaky(p + D) - kappa D - top) y of one injected node, 0 at most; [N, C]."""
        ends = torch.linspace(*self.score, FINE + 1, dtype=d.dtype, device=d.device)[1:]
        worst = d.new_zeros(len(d), self.speaks.size(1))
        for end, speaks in zip(ends, self.speaks, strict=True):
            size = (last.leaky(end + d) - kappa * d - top).exp()
            worst = torch.minimum(worst, size[:, None] * speaks[answer])
        return worst


def kept_under_injection(chain: Chain, threat: Injection) -> Tensor:
    """Where no such injection changes the class; [N]."""
    first, last = two_layers(chain)
    if not float(chain.x.min()) >= threat.box[0] or not float(chain.x.max()) <= threat.box[1]:
        raise NoBoundError(
            f"the features of the graph lie between {float(chain.x.min()):g} and {float(chain.x.max()):g}, outside the "
            f"box {threat.box}; the bound needs a box that holds them"
        )
    every = Universe.of(chain, threat.box)
    low, high = injected_states(chain, first, every, threat)
    p_low, p_high = (end.clamp(*every.score) for end in span(last.source[0], low, high))
    d_low, d_high = (end.clamp(*every.shared) for end in span(last.target[0], low, high))
    own_y = least_values(last, chain.answer, low, high)
    margin = torch.full((chain.nodes,), torch.inf, dtype=torch.double, device=chain.x.device)
    for i in range(CELLS):
        d = [d_low + (d_high - d_low) * (i + j) / CELLS for j in (0, 1)]
        ways = [_margin(chain, threat, every, (p_low, p_high), own_y, (low, high), d, k) for k in (1.0, last.slope)]
        margin = torch.minimum(margin, torch.stack(ways).amax(0))
    return margin > SLACK


def kept_members(chain: Chain, threat: Injection, k: int) -> Tensor:
    """The share of the top k that no injection at the node alone (no neighbours touched) evicts; [N]."""
    first, last = two_layers(chain)
    every = Universe.of(chain, threat.box)
    p_low, p_high = span(last.source[0], *injected_states(chain, first, every, threat))
    score, target, nodes = chain.hidden @ last.source[0], chain.target, chain.nodes
    p = score[chain.source]
    every_node = torch.arange(nodes, device=target.device)
    near = SLACK * (1 + score.abs().max() + max(map(abs, every.shared)))
    strongest = every.score[1] + near
    above = at_least(p, target, p - near, target, nodes) - 1  # old neighbours that may come before it, by rounding too
    worst = above + (p_high[target] + near >= p).long() + threat.nodes * (strongest >= p).long()
    own = at_least(p, target, p_low - near, every_node, nodes) + threat.nodes * (strongest >= p_low).long()
    size = degree(target, nodes) + 1
    before = at_least(p, target, p - near, target, nodes) - 1 + (score[target] >= p - near).long()
    mine = at_least(p, target, score - near, every_node, nodes)
    kept = segment_sum(((before < effective_k(k, size)[target]) & (worst < k)).long(), target, nodes)
    return (kept + ((mine < effective_k(k, size)) & (own < k)).long()) / effective_k(k, size).double()


def two_layers(chain: Chain) -> tuple[Layer, Layer]:
    """Both layers, if they are GATConv with self-loops; `NoBoundError` says what is not so."""
    first, last = chain.first, chain.last
    if first is None:
        raise NoBoundError("bounds against injected nodes are written for two layers, and the model has one")
    if first.att is not None or last.att is not None:
        raise NoBoundError(
            "in GATv2Conv an injected node's score depends on both ends inside the leak; interval bounds of it "
            "certify nothing, and no better ones are known here"
        )
    if not (first.loops and last.loops):
        raise NoBoundError("bounds against injected nodes are written for layers that add self-loops")
    return first, last


def injected_states(chain: Chain, first: Layer, every: Universe, threat: Injection) -> tuple[Tensor, Tensor]:
    """Where the state of a node lies when `threat.nodes` nodes are linked to it; [N, K] each."""
    a_low, a_high = -support(-first.source, threat.box), support(first.source, threat.box)  # [H]
    scale = first.value.norm(dim=2) / first.source.norm(dim=1, keepdim=True).clamp(min=1e-12)  # [H, C]
    slopes = _slopes(1.0, first.value)[:, None, None] * scale  # [L, H, C]
    reach = chain.x @ first.target.t()
    ends = []
    for sign in (1.0, -1.0):
        forms = sign * first.value + slopes[..., None] * first.source[:, None]
        bound, best = support(forms, threat.box), torch.zeros_like(chain.pre)
        for i in range(FINE):
            low, high = (a_low + (a_high - a_low) * (i + j) / FINE for j in (0, 1))
            value = (bound - slopes * low[:, None]).amin(0) + sign * first.shift
            mass = (first.leaky(high + reach) - chain.normal + math.log(threat.nodes)).sigmoid()
            best = torch.maximum(best, mass.unsqueeze(2) * (value - sign * chain.pre))
        ends.append(chain.pre + sign * best)
    high, low = ends
    low = torch.maximum(low, torch.minimum(every.low, chain.pre))
    high = torch.minimum(high, torch.maximum(every.high, chain.pre))
    return chain.act(low).flatten(1), chain.act(high).flatten(1)


def support(form: Tensor, box: tuple[float, float]) -> Tensor:
    """The most of form . x over the box; [..., F] -> [...].

    >>> support(torch.tensor([1.0, -2.0]), (0.0, 1.0))
    tensor(1.)
    """
    low, high = box
    return high * form.clamp(min=0).sum(-1) + low * form.clamp(max=0).sum(-1)


def at_least(value: Tensor, index: Tensor, floor: Tensor, where: Tensor, num: int) -> Tensor:
    """How many entries of the segment `where` have a value of `floor` or more; [E], [E], [B], [B] -> [B].

    >>> at_least(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0, 0, 1]), torch.tensor([2.0]), torch.tensor([0]), 2)
    tensor([1])
    """
    if len(value) == 0:
        return torch.zeros_like(where)
    low, high = value.min(), value.max()
    unit = lambda part: ((part - low) / (high - low).clamp(min=1e-300)).clamp(-0.25, 1.25).double()  # noqa: E731
    keys = (2 * index + unit(value)).sort().values
    return degree(index, num).cumsum(0)[where] - torch.searchsorted(keys, 2 * where + unit(floor))


def _margin(
    chain: Chain,
    threat: Injection,
    every: Universe,
    own: tuple[Tensor, Tensor],
    own_y: Tensor,
    states: tuple[Tensor, Tensor],
    cell: list[Tensor],
    kappa: float,
) -> Tensor:
    """The least S in a cell of D, relative to the sizes of the old terms; [N]."""
    last, source, target, nodes = chain.last, chain.source, chain.target, chain.nodes

    def ends(low: Tensor, high: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        both = [torch.stack([last.leaky(p + d[at]) - kappa * d[at] for d in cell]) for p in (low, high)]
        return both[0].amin(0), both[1].amax(0)

    p, loop = (chain.hidden @ last.source[0])[source], torch.arange(nodes, device=source.device)
    edge, mine = ends(p, p, target), ends(*own, loop)
    top = torch.maximum(segment_max(edge[1], target, nodes), mine[1])
    edge_y = edge_values(chain)
    term = weighed(edge[0] - top[target], edge[1] - top[target], edge_y)
    own_term = weighed(mine[0] - top, mine[1] - top, own_y)
    total = segment_sum(term, target, nodes) + own_term
    if threat.neighbours:
        touched = ends(torch.minimum(own[0][source], p), torch.maximum(own[1][source], p), target)
        y = least_values(last, chain.answer[target], states[0][source], states[1][source])
        hit = weighed(touched[0] - top[target], touched[1] - top[target], torch.minimum(y, edge_y))
        total = total + worst_few(hit - term, target, nodes, threat.neighbours)
    # exp(leaky(p + D) - kappa D) falls in D for kappa = 1 and rises for kappa = the slope
    total = total + threat.nodes * every.term(last, cell[0] if kappa == 1.0 else cell[1], kappa, chain.answer, top)
    relative = total / (segment_sum(term.abs(), target, nodes) + own_term.abs()).clamp(min=1e-300)
    return relative.scatter(1, chain.answer[:, None], torch.inf).amin(1)


def _ends(span: tuple[Tensor, Tensor]) -> tuple[float, float]:
    return float(span[0]), float(span[1])


def _slopes(scale: float, like: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1), scale * torch.logspace(-1.5, 1.5, 11)]).to(like)
