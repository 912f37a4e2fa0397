"""Leave one edge of the last layer out: what the margin of a node's answer loses, in closed form.

Where the logits are linear in the last layer's weights, logit_i = sum_j a_ij v_j + const. Without the edge j, and with
the other weights scaled to sum to one again, the aggregate changes by

    sum_j a_j v_j - (sum_j a_j v_j - a_j v_j) / (1 - a_j) = a_j / (1 - a_j) (v_j - sum_j a_j v_j)

so the margin m of the answer over the next class falls by a_j / (1 - a_j) (m(v_j) - m(sum_j a_j v_j)). Heads add up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fgai.errors import SettingError, TapError
from fgai.explanations.attribution import Attribution, attribution
from fgai.graph import segment_sum

ALONE = 1e-9  # 1 - a under which nothing is left to scale up: the whole aggregate goes
LINEAR = 1e-3  # relative error up to which the logits count as linear in the weights


def class_logits(logits: Tensor) -> Tensor:
    """Logits with a column per class, also where there is one logit, whose rival is 0; [N, C >= 2].

    >>> class_logits(torch.tensor([[2.0]]))
    tensor([[0., 2.]])
    """
    if logits.dim() == 1 or logits.size(1) == 1:
        yes = logits.reshape(-1, 1)
        return torch.cat([torch.zeros_like(yes), yes], dim=1)
    return logits


def leave_one_out(reading: Any, read: Any = None, graph: Any = None) -> Attribution:
    """Leave-one-out of the last layer in closed form: what the margin of the answer loses without an edge."""
    if read is None or graph is None:
        raise SettingError("leave-one-out runs the model again; give it the reader and the graph: read=..., graph=...")
    site, last = list(reading.attention.items())[-1]
    value = value_vectors(read, graph, site, last.weight)
    if value is None:
        raise TapError(
            f"leave-one-out needs logits that are linear in the weights of the last attention layer, and here they are "
            f"not: something nonlinear follows '{site}'; explain by 'tree', 'last' or 'first'"
        )
    logits = class_logits(reading.logits).double()
    if len(logits) != last.num_targets:
        raise TapError(
            f"the model answers {len(logits)} times for {last.num_targets} nodes; explain by 'tree' or 'last'"
        )
    margin = _margin(value, logits, last.target)  # [E, H]
    share = replace(last, weight=last.weight.double(), score=None).coalesce()
    pull = replace(last, weight=last.weight * margin, score=None).coalesce().weight
    total = segment_sum(pull, share.target, share.num_targets)[share.target]
    rest = 1.0 - share.weight
    lost = torch.where(rest > ALONE, (pull - share.weight * total) / rest.clamp(min=ALONE), pull)
    weight = lost.sum(1, keepdim=True)
    notes = ("only the last layer's edges count; negative weights speak against the answer",)
    return attribution("leave-one-out", {site: replace(share, weight=weight)}, notes=notes)


def _margin(value: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    """How much a value vector speaks for the answer over the next class; [E, H, C] -> [E, H]."""
    answer, rival = logits.topk(2).indices.T
    own, other = (value.gather(2, c[target].view(-1, 1, 1).expand(-1, value.size(1), 1)) for c in (answer, rival))
    return (own - other)[..., 0]


def value_vectors(read: Any, graph: Any, site: str, weight: Tensor) -> Tensor | None:
    """D logits / d weight for every edge and head, [E, H, C], or None if the logits are not linear in these weights.

    One gradient per class; linearity is checked with a random change of the weights.
    """
    delta = torch.zeros_like(weight).requires_grad_()
    with torch.enable_grad():
        reading = read(graph, weight_delta={site: delta})
        clean, target = class_logits(reading.logits), reading.attention[site].target
        columns = [torch.autograd.grad(column.sum(), delta, retain_graph=True)[0] for column in clean.T]
    value = torch.stack(columns, dim=2)
    draw = torch.rand(weight.shape, generator=torch.Generator().manual_seed(0), dtype=weight.dtype).to(weight.device)
    with torch.no_grad():
        moved = class_logits(read(graph, weight_delta={site: draw}).logits) - clean
        told = segment_sum(draw.unsqueeze(-1) * value, target, len(clean)).sum(1)
    scale = moved.abs().max().clamp(min=1e-12)
    return value.double() if bool((moved - told).abs().max() <= LINEAR * scale) else None
