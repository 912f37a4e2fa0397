"""Order of the top k under injected nodes, whatever their features.

Order. In GATConv the score of neighbour j at node v is leaky(p_j + D). It increases in p_j, which depends on j only,
and D is the same for all j. Nodes injected at v do not change the states of v's neighbours (in at most two layers), so
they never change the order of the old neighbours. Only new nodes and v's self-loop change their ranks.

Lemma. If all entries but r keep their relative order, new ones counted among the r, the top k loses at most r members.
Proof. Let t of the r be in the old top k (q = min(k, size) members), t' in the new one, b in both; t + t' - b <= r. The
others in the old top k are the q - t first of those that keep their order, and the k - t' first of them (or all) are in
the new one. So at most t - b are lost if q - t <= k - t', else at most q - (k - t') - b <= t' - b <= r - t. QED

With r = m new nodes + 1 self-loop: V_k >= 1 - (m + 1) / k; without self-loops V_k >= 1 - m / k. If the self-loop is in
the top k then t >= 1 and V_k >= 1 - m / k as well. If new nodes are linked to e neighbours too, r = m + 1 + e.
GATv2Conv and TransformerConv have no such order, because the state of v affects each neighbour's score differently.
The statement is about scores: weights that underflow to 0 in single precision are tied.

Rounding. Scores that are close may swap in single precision. An entry leaves the top k of the old entries only for one
close to it, so both are close to the k-th weight: at most as many are lost as are close on either side. A self-loop
that is close counts as one outside of the top k.

Clones. In one layer of any attention without edge features, a new node with the features of v's neighbour j has j's
score. m clones of the strongest neighbour, of weight w, have weight m w / (1 + m w) together and rank before each
member of the top k with a lower weight. So for k >= 2 no node with k neighbours or more has V_k = 1, unless all weights
of its top k tie. For k = 1 a clone only ties with the strongest neighbour.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgai.attention import Attention
from fgai.errors import SettingError
from fgai.graph import degree, segment_max, segment_sum
from fgai.topk import effective_k, topk_mask

NEAR = 1e-4  # relative to the k-th weight


def ordered_overlap(attention: Attention, k: int, nodes: int, neighbours: int = 0) -> Tensor:
    """Return a lower bound of V_k under any injection of `nodes` nodes at a node, for GATConv with one head.

    Args:
        attention: The clean attention of the last layer, with one head.
        k: Size of the top k, a number of neighbours.
        nodes: Number of injected nodes.
        neighbours: Number of neighbours of the node that injected nodes are linked to.

    Returns:
        The bound for each node, float64 [N]; NaN without neighbours.

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 3], [3, 3, 3]]), num_targets=4)
    >>> ordered_overlap(a, k=2, nodes=1)[3]  # the self-loop 3 -> 3 may enter the top 2, too
    tensor(0., dtype=torch.float64)
    """
    if attention.weight.size(1) != 1:
        raise SettingError(f"the attention has {attention.weight.size(1)} heads; their mean need not keep its order")
    attention = attention.double()
    source, target, num = attention.source, attention.target, attention.num_targets
    weight = attention.weight[:, 0]
    member = topk_mask(weight, target, num, k)
    least = -segment_max(torch.where(member, -weight, -torch.inf), target, num)[target]
    near = (weight - least).abs() <= NEAR * least
    size = degree(target, num)
    inside, outside = (segment_sum((near & part).long(), target, num) for part in (member, ~member))
    swapped = torch.minimum(inside, outside)
    sure = member & ~(near & (swapped > 0)[target])
    loose = segment_sum(((source == target) & ~sure).long(), target, num)
    movers = nodes + neighbours + loose + swapped
    crowded = (size + nodes - k).clamp(min=0)  # if all entries are members, only as many are lost as exceed k
    lost = torch.where(size <= k, torch.minimum(movers, crowded), movers)
    return (1 - lost / effective_k(k, size).double()).clamp(min=0)


def cloned_overlap(attention: Attention, k: int, nodes: int) -> Tensor:
    """Return V_k after the injection of `nodes` clones of the strongest neighbour, in one layer; [N].

    It is an upper bound of every certificate against injected nodes.

    Args:
        attention: The clean attention.
        k: Size of the top k, a number of neighbours.
        nodes: Number of clones.

    Returns:
        V_k of each node, float64 [N]; NaN without neighbours.

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 2], [3, 3, 3]]), num_targets=4)
    >>> cloned_overlap(a, k=2, nodes=1)[3]
    tensor(0.5000, dtype=torch.float64)
    """
    once = attention.mean_heads().double()
    weight, target, num = once.weight[:, 0], once.target, once.num_targets
    member = topk_mask(weight, target, num, k)
    below = segment_sum((member & (weight < segment_max(weight, target, num)[target])).long(), target, num)
    places = (degree(target, num) + nodes - k).clamp(min=0)
    lost = torch.minimum(torch.minimum(below, places), torch.full_like(below, nodes))
    return 1 - lost / effective_k(k, degree(target, num)).double()


def cloned_weight(attention: Attention, nodes: int) -> Tensor:
    """Return the total attention weight of `nodes` clones of the strongest neighbour, in one layer; [N].

    Args:
        attention: The clean attention.
        nodes: Number of clones.

    Returns:
        The weight at each node, [N]; 0 without neighbours.

    >>> a = Attention(torch.tensor([[0.5], [0.5]]), torch.tensor([[0, 1], [2, 2]]), num_targets=3)
    >>> cloned_weight(a, nodes=2)[2]  # 2 x 0.5 / (1 + 2 x 0.5)
    tensor(0.5000)
    """
    once = attention.mean_heads()
    taken = nodes * segment_max(once.weight[:, 0], once.target, once.num_targets)
    return torch.where(once.degree > 0, taken / (1 + taken), 0.0)
