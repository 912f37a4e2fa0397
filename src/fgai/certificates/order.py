"""What injected nodes can and cannot do to a node's top k, whatever their features.

Order. In GATConv the score of neighbour j at node v is leaky(p_j + D): it rises in p_j, which is j's own, and D is the
same for all j. So nodes injected at v, which leave the states of v's neighbours as they are (two layers at most), never
change the order of the old neighbours. Only new nodes and v's own self-loop change places.

Lemma. If all entries but r keep their relative order, new ones counted among the r, the top k loses at most r members.
Proof. Let t of the r be in the old top k (q = min(k, size) members), t' in the new one, b in both; t + t' - b <= r. The
others in the old top k are the q - t first of those that keep their order, and the k - t' first of them (or all) are in
the new one. So the lost are at most t - b if q - t <= k - t', else at most q - (k - t') - b <= t' - b <= r - t. QED

With r = m new nodes + 1 self-loop: V_k >= 1 - (m + 1) / k; without self-loops V_k >= 1 - m / k. If the self-loop is in
the top k then t >= 1 and V_k >= 1 - m / k as well. With e neighbours touched, r = m + 1 + e. GATv2Conv and
TransformerConv have no such order: D acts on each neighbour differently there. This is about scores: weights that
underflow to 0 in single precision tie, and no longer show the order.

Clones. In one layer of any attention without edge features, a new node with the features of v's neighbour j has j's
score. m clones of the strongest, of weight w, take m w / (1 + m w) together and come before every member of the top k
with a lower weight: no node with k neighbours or more keeps V_k = 1 unless these weights tie. Sharper attention is
easier to capture.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgai.attention import Attention
from fgai.errors import SettingError
from fgai.graph import degree, segment_max, segment_sum
from fgai.topk import effective_k, topk_mask


def ordered_overlap(attention: Attention, k: int, nodes: int, neighbours: int = 0) -> Tensor:
    """V_k that no injection of `nodes` nodes at a node undercuts in GATConv, one head; NaN without neighbours; [N].

    `neighbours` of the node's neighbours may be touched as well.

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 3], [3, 3, 3]]), num_targets=4)
    >>> ordered_overlap(a, k=2, nodes=1)[3]  # the self-loop 3 -> 3 may come in too
    tensor(0., dtype=torch.float64)
    """
    if attention.weight.size(1) != 1:
        raise SettingError(f"the attention has {attention.weight.size(1)} heads; their mean need not keep its order")
    source, target, num = attention.source, attention.target, attention.num_targets
    member = topk_mask(attention.weight[:, 0], target, num, k)
    loop = source == target
    size = degree(target, num)
    loose = segment_sum(loop.long(), target, num) - segment_sum((loop & member).long(), target, num)
    movers = nodes + neighbours + loose
    members = effective_k(k, size).double()
    crowded = (size + nodes - k).clamp(min=0)  # where all were members, only the overfull places are lost
    lost = torch.where(size <= k, torch.minimum(movers, crowded), movers)
    return (1 - lost / members).clamp(min=0)


def cloned_overlap(attention: Attention, k: int, nodes: int) -> Tensor:
    """V_k that `nodes` clones of the strongest neighbour bring about in one layer: no certificate is above it; [N].

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 2], [3, 3, 3]]), num_targets=4)
    >>> cloned_overlap(a, k=2, nodes=1)[3]
    tensor(0.5000, dtype=torch.float64)
    """
    weight, target, num = attention.mean().weight[:, 0], attention.target, attention.num_targets
    member = topk_mask(weight, target, num, k)
    below = segment_sum((member & (weight < segment_max(weight, target, num)[target])).long(), target, num)
    places = (degree(target, num) + nodes - k).clamp(min=0)
    lost = torch.minimum(torch.minimum(below, places), torch.full_like(below, nodes))
    return 1 - lost / effective_k(k, degree(target, num)).double()


def cloned_weight(attention: Attention, nodes: int) -> Tensor:
    """The weight that `nodes` clones of the strongest neighbour take together in one layer; [N].

    >>> a = Attention(torch.tensor([[0.5], [0.5]]), torch.tensor([[0, 1], [2, 2]]), num_targets=3)
    >>> cloned_weight(a, nodes=2)[2]  # 2 x 0.5 / (1 + 2 x 0.5)
    tensor(0.5000)
    """
    once = attention.mean()
    taken = nodes * segment_max(once.weight[:, 0], once.target, once.num_targets)
    return torch.where(once.degree > 0, taken / (1 + taken), 0.0)
