"""Certificate of the prediction, for models whose logits are linear in the attention weights of the last layer.

With u_j = d logits / d w_j, delta changes the logits by sum_j delta_j u_j. For |delta|_p <= R and its dual norm q:

    class c stays while R |(u_j[c'] - u_j[c])_j|_q < logit[c] - logit[c']  for every c'
    TVD <= tanh(R |(osc u_j)_j|_q / 4),  osc u = max - min over classes

because a change z of the logits changes a softmax by at most tanh(osc z / 4) in TVD. Each head has its own ball, so the
bounds of the heads are summed. If the model answers for graphs, so are those of the nodes of a graph. For the class,
the rounding of the logits is subtracted from the gap, a share of |logit| and of R |u|.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.gains import binary_logits
from fgai.attention import Attention, explaining_sites
from fgai.certificates.explanation import Norm
from fgai.certificates.rounding import rounding
from fgai.devices import to_double
from fgai.explanations import value_vectors
from fgai.graph import segment_max, segment_sum
from fgai.printing import short_repr
from fgai.reading import Reader, Reading


@dataclass(frozen=True)
class PredictionBound:
    """Effect of the attention of the last layer on the prediction of each item: each node, or each graph of a batch."""

    class_radius: Tensor  # [N], inside it the class cannot change; inf if no attention weight affects the class
    pull: Tensor  # [N], largest change of the spread (max - min) of the logits, per unit of radius

    __repr__ = short_repr

    def tvd(self, radius: float) -> Tensor:
        """Return the bound on the TVD of the prediction at this radius, per item; [N]."""
        return (radius * self.pull / 4).tanh()


def prediction_bound(read: Reader, data: Data, norm: Norm = "l1") -> PredictionBound | None:
    """Bound the effect of the attention of the last layer on the predictions.

    The vectors u_j are gradients of the model, one backward pass per class. Random deltas check linearity.

    Args:
        read: Reader of the model, in evaluation mode.
        data: The graph.
        norm: Norm of delta: `l1`, `l2` or `linf`.

    Returns:
        The bound, or None if the logits are not linear in the weights of the last attention layer, or are of pairs.

    >>> from torch_geometric.nn import GATConv
    >>> data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [2, 2]]))
    >>> prediction_bound(Reader(GATConv(3, 2).eval()), data).class_radius.shape
    torch.Size([3])
    """
    with torch.no_grad():
        clean = read(data)
    site = explaining_sites(clean.attention)[-1]
    attention, logits = clean.attention[site], to_double(binary_logits(clean))
    item = _items_of_targets(clean, attention)
    value = None if item is None else value_vectors(read, data, site, attention.weight, item[attention.target])
    if value is None or item is None:
        return None
    target, item = attention.target.to(value.device), item.to(value.device)

    def effect(vectors: Tensor) -> Tensor:
        """Return the largest change of each row of logits, summed over heads and over the targets of the row."""
        return segment_sum(dual(vectors, target, len(item), norm).sum(1), item, len(logits))

    predicted = logits.argmax(-1)
    own = value.gather(2, predicted[item[target]].view(-1, 1, 1).expand(-1, value.size(1), 1))
    rate = effect(value - own)  # [N, C]
    share = rounding(clean.logits.dtype)
    gap = logits.gather(1, predicted[:, None]) - logits - share * logits.abs().amax(1, keepdim=True)
    rival = torch.ones_like(gap, dtype=torch.bool).scatter_(1, predicted[:, None], False)
    slack = share * effect(value.abs().amax(2, keepdim=True))
    radius = gap.clamp(min=0) / (rate + slack).clamp(min=torch.finfo(rate.dtype).tiny)
    radius = torch.where(rival & (rate > 0), radius, torch.inf)
    spread = (value.amax(2) - value.amin(2)).unsqueeze(-1)
    return PredictionBound(radius.amin(1), effect(spread)[:, 0])


def _items_of_targets(clean: Reading, attention: Attention) -> Tensor | None:
    """Return the row of logits of each target of the attention, [T]; None if they are of pairs."""
    items = clean.items
    if items is not None and items.batch is not None and attention.over != "graphs":
        return items.batch
    rows = torch.arange(attention.num_targets, device=attention.target.device)
    return rows if len(clean.logits) == len(rows) else None


def dual(value: Tensor, target: Tensor, nodes: int, norm: Norm) -> Tensor:
    """Return max sum_j delta_j u_j over |delta| <= 1, entry by entry: the dual norm; [E, H, C] -> [N, H, C].

    >>> dual(torch.tensor([[[1.0]], [[-3.0]]]), torch.tensor([0, 0]), 1, "l1").item()
    3.0
    """
    size = value.abs()
    if norm == "linf":
        return segment_sum(size, target, nodes)
    if norm == "l2":
        return segment_sum(size.square(), target, nodes).sqrt()
    return segment_max(size, target, nodes)
