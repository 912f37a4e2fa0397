"""Deletions: where the class of a node does not change if any q of its links are deleted; one or two GAT layers.

In a last layer of one head, let u_j be the value of neighbour j with all biases, and y_j = u_j[c*] - u_j[c]. Then

    logit_c* - logit_c = sum_j w_j y_j,   w_j = exp(s_j) / sum_k exp(s_k) > 0

has the sign of S = sum_j exp(s_j) y_j, because the denominator is positive. Deleting a set Q of neighbours removes
their terms from S. In one layer no other term changes, so S is smallest without its q largest positive terms: exact.

In two layers the state h_v of the node changes as well, because its first layer loses Q too. The states of the other
neighbours do not change, because their own links do not. With weights w, values z and output o of the first layer

    o' = o + sum_Q w_j (o - z_j) / w_R,  w_R the sum of the weights that remain

so each channel changes by at most the sum of the q largest positive (or negative) terms over the sum of all weights but
the q largest, and stays in the range of the values. This box bounds each score s_j and the term of the self-loop, and S
by the worst case of each term. In GAT, s_j = leaky(p_j + D), and h_v affects D only. The range of D is split into
cells, and S may be divided by exp(kappa D) for any kappa, which cancels common factors: kappa = 1 and kappa = slope are
tried.

The model rounds, so each y_j is lowered by what rounding may change (`fgai.certificates.rounding`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgai.certificates.chain import Chain, segment_max
from fgai.certificates.layers import Layer
from fgai.certificates.rounding import Slack, error_of_sum
from fgai.graph import degree, segment_sum

CELLS = 8
TINY = 1e-300  # keeps a quotient finite
PART = 2**16  # edges at once: each has 64 numbers and more


@dataclass(frozen=True)
class Exponents:
    """Bounds of the scores in one cell of D, minus kappa D, which all neighbours of a node share."""

    low: Tensor  # [E]
    high: Tensor  # [E]
    own_low: Tensor  # [N], of the self-loop
    own_high: Tensor  # [N]


def certified_under_deletions(chain: Chain, links: int) -> Tensor:
    """Return where no deletion of `links` links of the node changes its class; [N]."""
    certified = torch.zeros(chain.nodes, dtype=torch.bool, device=chain.x.device)
    slack = chain.slack()
    for nodes, places, part in chain.projected().parts(PART):
        certified[nodes] = _least_margin(part, links, slack)[places] > 0
    loops = all(layer.loops for layer in (chain.first, chain.last) if layer is not None)
    return certified if loops else certified & (degree(chain.target, chain.nodes) > links)  # a link must remain


def _least_margin(chain: Chain, links: int, slack: Slack) -> Tensor:
    """Return the least margin of each node over all cells; [N]."""
    low, high = _states(chain, links)
    own_y, edge_y = (slack.below(y) for y in (own_values(chain, low, high), edge_values(chain, chain.prediction)))
    margin = torch.full((chain.nodes,), torch.inf, dtype=torch.double, device=chain.x.device)
    for options in _cells(chain, low, high):
        best = torch.stack([_margin(chain, option, edge_y, own_y, links) for option in options]).amax(0)
        margin = torch.minimum(margin, best)
    return margin


def edge_values(chain: Chain, prediction: Tensor) -> Tensor:
    """Return y_j of each edge against each class, for the prediction of its target; [E, C]."""
    value = chain.last.values(chain.hidden)[:, 0]
    return value[chain.source].gather(1, prediction[chain.target][:, None]) - value[chain.source]


def own_values(chain: Chain, low: Tensor, high: Tensor) -> Tensor:
    """Return the least y of the self-loop of each node over a box of its states; [N, C]."""
    return least_values(chain.last, chain.prediction, low, high)


def least_values(layer: Layer, prediction: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the least value[prediction] - value[c] over boxes of states; [B, K] -> [B, C]."""
    value, shift = layer.value[0], layer.shift[0]
    out = low.new_empty(len(prediction), len(value))
    for c in range(len(value)):
        at = (prediction == c).nonzero().flatten()
        out[at] = span(value[c] - value, low[at], high[at])[0] + (shift[c] - shift)
    return out


def span(form: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest form . h over boxes; [..., K] and [N, K] -> [N, ...].

    >>> span(torch.tensor([1.0, -1.0]), torch.zeros(1, 2), torch.ones(1, 2))
    (tensor([-1.]), tensor([1.]))
    """
    plus, minus = (part.movedim(-1, 0) for part in (form.clamp(min=0), form.clamp(max=0)))
    least, most = ((low, high), (high, low))
    return tuple(torch.tensordot(a, plus, 1) + torch.tensordot(b, minus, 1) for a, b in (least, most))  # pyright: ignore


def most_negative(harm: Tensor, index: Tensor, num: int, count: int) -> Tensor:
    """Return the `count` most negative entries of each segment and column, fewer if fewer are negative; [E, C] -> bool.

    >>> most_negative(torch.tensor([[-1.0], [-3.0], [2.0], [-2.0]]), torch.tensor([0, 0, 0, 1]), 2, 1).flatten()
    tensor([False,  True, False,  True])
    """
    chosen = torch.zeros_like(harm, dtype=torch.bool)
    number = torch.arange(len(harm), device=harm.device)[:, None].expand_as(harm)
    for _ in range(count):
        left = torch.where(chosen, 0.0, harm)
        worst = -segment_max(-left, index, num)
        row = torch.where((left == worst[index]) & (left < 0), number, len(harm))
        first = torch.full_like(worst, len(harm), dtype=torch.long)
        first = first.scatter_reduce(0, index[:, None].expand_as(row), row, "amin")
        is_worst = number == first[index]
        if not bool(is_worst.any()):
            break
        chosen |= is_worst
    return chosen


def sum_most_negative(harm: Tensor, index: Tensor, num: int, count: int) -> Tensor:
    """Return the sum of the `count` most negative entries of each segment and column; [E, C] -> [num, C].

    >>> sum_most_negative(torch.tensor([[-1.0], [-3.0], [2.0], [-2.0]]), torch.tensor([0, 0, 0, 1]), 2, 2)
    tensor([[-4.],
            [-2.]])
    """
    early = most_negative(harm, index, num, count - 1)
    last = -segment_max(torch.where(early, 0.0, -harm), index, num)  # its place is not needed
    return segment_sum(torch.where(early, harm, 0.0), index, num) + last.clamp(max=0)


def _states(chain: Chain, links: int) -> tuple[Tensor, Tensor]:
    """Return bounds of the state of each node after the deletion of `links` of its links; [N, K] each."""
    if chain.first is None:
        return chain.hidden, chain.hidden
    layer, nodes, source, target = chain.first, chain.nodes, chain.source, chain.target
    each = torch.arange(nodes, device=source.device)
    value, score = layer.values(chain.x), layer.scores(chain.x, source, target)
    own = layer.scores(chain.x, each, each) if layer.loops else torch.full_like(value[..., 0], -torch.inf)
    top = torch.maximum(segment_max(score, target, nodes), own)
    mass, own = (score - top[target]).exp(), (own - top).exp()  # [E, H] and [N, H]
    gone = most_negative(-mass, target, nodes, links)
    rest = own + segment_sum(torch.where(gone, 0.0, mass), target, nodes)  # 1 - w_Q would cancel
    mass, own, total, rest = (
        part.repeat_interleave(value.size(2), 1) for part in (mass, own, own + segment_sum(mass, target, nodes), rest)
    )
    value = value.flatten(1)
    pre = (segment_sum(mass * value[source], target, nodes) + own * value) / total.clamp(min=TINY)
    pull = mass * (pre[target] - value[source])
    most, least = (segment_max(sign * value[source], target, nodes) for sign in (1, -1))
    if layer.loops:
        most, least = torch.maximum(most, value), torch.maximum(least, -value)
    size = torch.maximum(most.abs(), least.abs())
    error = 2 * error_of_sum(degree(target, nodes)[:, None], total * size)
    up, down = (
        (error - sum_most_negative(sign * pull, target, nodes, links)) / rest.clamp(min=TINY) for sign in (-1, 1)
    )
    high = torch.minimum(pre + up, torch.maximum(most, pre))
    low = torch.maximum(pre - down, torch.minimum(-least, pre))
    return chain.act(low), chain.act(high)


def _cells(chain: Chain, low: Tensor, high: Tensor) -> list[list[Exponents]]:
    """Return, for each cell of D, one bound of the scores per kappa: the best bound counts, and the worst cell."""
    layer, source, target = chain.last, chain.source, chain.target
    if layer.att is not None:
        return [[_gatv2(chain, low, high)]]
    p = chain.hidden @ layer.source[0]
    (p_low, p_high), (d_low, d_high) = (span(form[0], low, high) for form in (layer.source, layer.target))
    cells = []
    for i in range(CELLS if chain.first is not None else 1):
        ends = [d_low + (d_high - d_low) * (i + j) / (CELLS if chain.first is not None else 1) for j in (0, 1)]
        cells.append([_gat(layer, p[source], target, (p_low, p_high), ends, kappa) for kappa in (1.0, layer.slope)])
    return cells


def _gat(
    layer: Layer, p: Tensor, target: Tensor, own: tuple[Tensor, Tensor], ends: list[Tensor], kappa: float
) -> Exponents:
    """Bound leaky(p + D) - kappa D by its values at the ends of a cell; it is monotone for kappa = 1 or slope."""
    edge = torch.stack([layer.leaky(p + d[target]) - kappa * d[target] for d in ends])
    low, high = (torch.stack([layer.leaky(part + d) - kappa * d for d in ends]) for part in own)
    return Exponents(edge.amin(0), edge.amax(0), low.amin(0), high.amax(0))


def _gatv2(chain: Chain, low: Tensor, high: Tensor) -> Exponents:
    """Bound att . leaky(L h_j + R h_v) for known h_j and h_v in a box."""
    layer, att = chain.last, chain.last.att
    assert att is not None
    left = chain.hidden @ layer.source[0].t() + layer.inner[0]
    right = span(layer.target[0], low, high)
    both = span(layer.source[0] + layer.target[0], low, high)
    ends = [
        *(layer.leaky(left[chain.source] + part[chain.target]) for part in right),
        *(layer.leaky(part + layer.inner[0]) for part in both),
    ]
    plus, minus = att[0].clamp(min=0), att[0].clamp(max=0)
    least = [a @ plus + b @ minus for a, b in (ends[:2], ends[2:])]
    most = [b @ plus + a @ minus for a, b in (ends[:2], ends[2:])]
    return Exponents(least[0], most[0], least[1], most[1])


def _margin(chain: Chain, at: Exponents, edge_y: Tensor, own_y: Tensor, links: int) -> Tensor:
    """Return the least S over all deletions and classes, up to a positive factor; [N]."""
    target, nodes = chain.target, chain.nodes
    top = segment_max(at.high, target, nodes)
    top = torch.maximum(top, at.own_high) if chain.last.loops else top
    term = least_term(at.low - top[target], at.high - top[target], edge_y)
    term = torch.where(most_negative(-term, target, nodes, links), 0.0, term)  # the sum of all less the worst cancels
    total, size = segment_sum(term, target, nodes), segment_sum(term.abs(), target, nodes)
    if chain.last.loops:
        own = least_term(at.own_low - top, at.own_high - top, own_y)
        total, size = total + own, size + own.abs()
    total = total - error_of_sum(degree(target, nodes)[:, None], size)
    return total.scatter(1, chain.prediction[:, None], torch.inf).amin(1)


def least_term(low: Tensor, high: Tensor, y: Tensor) -> Tensor:
    """Return the least exp(s) y for s between low and high; [B] and [B, C] -> [B, C]."""
    return torch.where(y > 0, low.exp()[:, None], high.exp()[:, None]) * y
