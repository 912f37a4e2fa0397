"""The prediction's certificate: where the logits are linear in the last layer's weights, how far delta can move them.

With u_j = d logits / d w_j, the logits move by sum_j delta_j u_j. For |delta|_p <= R and its dual norm q:

    class c stays while R |(u_j[c'] - u_j[c])_j|_q < logit[c] - logit[c']  for every c'
    TVD <= tanh(R |(osc u_j)_j|_q / 4),  osc u = max - min over classes

because a change z of the logits moves a softmax by at most tanh(osc z / 4). Heads each have their own ball, so their
reaches add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.gains import binary_logits
from fgai.certificates.explanation import Norm
from fgai.explanations import value_vectors
from fgai.graph import segment_max, segment_sum
from fgai.reading import Reader


@dataclass(frozen=True)
class PredictionBound:
    """How far the last layer's attention reaches into each node's answer."""

    class_radius: Tensor  # [N], inside it the class cannot change; inf if attention has no say
    pull: Tensor  # [N], the most that the spread of the logits changes per unit of radius

    def tvd(self, radius: float) -> Tensor:
        """The bound on the TVD of the prediction at this radius, per node; [N]."""
        return (radius * self.pull / 4).tanh()


def prediction_bound(read: Reader, data: Data, norm: Norm = "l1") -> PredictionBound | None:
    """The reach of the last attention layer, or None where the logits are not linear in its weights.

    The value vectors come from the model itself, one gradient per class; linearity is checked with a random delta.

    >>> from torch_geometric.nn import GATConv
    >>> data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [2, 2]]))
    >>> prediction_bound(Reader(GATConv(3, 2).eval()), data).class_radius.shape
    torch.Size([3])
    """
    with torch.no_grad():
        clean = read(data)
    site = next(reversed(list(clean.attention)))
    place, logits = clean.attention[site], binary_logits(clean).double()
    value = value_vectors(read, data, site, place.weight)
    if value is None:
        return None
    target, nodes = place.target, len(logits)
    answer = logits.argmax(-1)
    own = value.gather(2, answer[target].view(-1, 1, 1).expand(-1, value.size(1), 1))
    force = dual(value - own, target, nodes, norm).sum(1)  # [N, C], over heads
    gap = logits.gather(1, answer[:, None]) - logits
    rival = torch.ones_like(gap, dtype=torch.bool).scatter_(1, answer[:, None], False)
    radius = torch.where(rival & (force > 0), gap / force.clamp(min=torch.finfo(force.dtype).tiny), torch.inf)
    spread = (value.amax(2) - value.amin(2)).unsqueeze(-1)
    return PredictionBound(radius.amin(1), dual(spread, target, nodes, norm).sum(1)[:, 0])


def dual(value: Tensor, target: Tensor, nodes: int, norm: Norm) -> Tensor:
    """The most that delta can make of sum_j delta_j u_j, entry by entry, per unit of |delta|; [E, H, C] -> [N, H, C].

    >>> dual(torch.tensor([[[1.0]], [[-3.0]]]), torch.tensor([0, 0]), 1, "l1").item()
    3.0
    """
    size = value.abs()
    if norm == "linf":
        return segment_sum(size, target, nodes)
    if norm == "l2":
        return segment_sum(size.square(), target, nodes).sqrt()
    return segment_max(size, target, nodes)
