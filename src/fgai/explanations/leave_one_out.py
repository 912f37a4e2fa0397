"""Leave-one-out of the edges of the last layer: the loss of the margin of a node's prediction, in closed form.

If the logits are linear in the weights of the last layer, logit_i = sum_j a_ij v_j + const. When the edge j is removed
and the other weights are scaled to sum to one again, the sum decreases by

    sum_j a_j v_j - (sum_j a_j v_j - a_j v_j) / (1 - a_j) = a_j / (1 - a_j) (v_j - sum_j a_j v_j)

so the margin m of the predicted class over the second one decreases by a_j / (1 - a_j) (m(v_j) - m(sum_j a_j v_j)).
The terms of the heads are added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fgai.attention import explaining_sites
from fgai.devices import to_double
from fgai.errors import CallError, SettingError, TapError
from fgai.explanations.attribution import Attribution, attribution
from fgai.graph import segment_sum

ALONE = 1e-9  # smallest 1 - a; below it no other edge remains, and the sum becomes 0
LINEAR = 1e-3  # tolerance of the linearity check, relative to the change of a row
ROUNDING = 1e-5  # of the terms of a row
CHANGES = ((0.0, 1.0), (-30.0, 30.0), (-1e4, 1e4))  # of weights, for this check: drawn between two ends


def class_probs(logits: Tensor) -> Tensor:
    """Return the softmax of logits, or the sigmoid of a single logit as two columns; [N, C].

    >>> class_probs(torch.tensor([[0.0]]))
    tensor([[0.5000, 0.5000]])
    """
    if logits.dim() == 1 or logits.size(1) == 1:
        positive = logits.reshape(-1, 1).sigmoid()
        return torch.cat([1 - positive, positive], dim=1)
    return logits.softmax(-1)


def class_logits(logits: Tensor) -> Tensor:
    """Return logits with a column per class; a single logit z becomes (0, z); [N, C >= 2].

    Half precision is converted to float32: a sum of logarithms overflows in float16.

    >>> class_logits(torch.tensor([[2.0]]))
    tensor([[0., 2.]])
    """
    logits = logits.float() if logits.dtype in (torch.half, torch.bfloat16) else logits
    if logits.dim() == 1 or logits.size(1) == 1:
        positive = logits.reshape(-1, 1)
        return torch.cat([torch.zeros_like(positive), positive], dim=1)
    if logits.size(1) == 0:
        raise CallError("the model returned logits without a column; fgai needs a column per class [N, C]")
    return logits


def leave_one_out(reading: Any, read: Any = None, graph: Any = None) -> Attribution:
    """Leave-one-out of the last layer: the loss of the margin of the prediction without an edge, in closed form.

    >>> from torch_geometric.data import Data
    >>> from torch_geometric.nn import GATConv
    >>> from fgai.reading import Reader
    >>> graph, read = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [2, 2]])), Reader(GATConv(3, 2).eval())
    >>> leave_one_out(read(graph).detach(), read, graph).edge_index.tolist()  # with the self-loops of the layer
    [[0, 1, 0, 1, 2], [0, 1, 2, 2, 2]]
    """
    if read is None or graph is None:
        raise SettingError("leave-one-out runs the model again; give the reader and the graph: read=..., graph=...")
    site = explaining_sites(reading.attention)[-1]
    last, logits = reading.attention[site].double(), class_logits(reading.logits)
    if len(logits) != last.num_targets:
        raise TapError(
            f"the model returns {len(logits)} rows of logits for {last.num_targets} nodes; use 'tree' or 'last'"
        )
    margin = edge_margins(read, graph, site, reading.attention[site].weight)
    if margin is None:
        raise TapError(
            f"leave-one-out needs logits that are linear in the weights of the last attention layer, '{site}', and a "
            "nonlinear operation follows it; use 'tree', 'last' or 'first'"
        )
    share = last.coalesce()
    pull = replace(last, weight=last.weight * margin, score=None).coalesce().weight
    total = segment_sum(pull, share.target, share.num_targets)[share.target]
    rest = 1.0 - share.weight
    lost = torch.where(rest > ALONE, (pull - share.weight * total) / rest.clamp(min=ALONE), pull)
    weight = lost.sum(1, keepdim=True)
    notes = ("other layers are ignored; an edge with a negative weight lowers the margin of the prediction",)
    return attribution("leave-one-out", {site: replace(share, weight=weight)}, notes=notes)


def edge_margins(read: Any, graph: Any, site: str, weight: Tensor, *, linear: bool = True) -> Tensor | None:
    """Return the margin of the predicted class over the second one in the value vector of each edge, [E, H].

    The margin of an edge j -> i is d (logit_i,1 - logit_i,2) / d a_ij, in one backward pass over the sum of all rows
    of logits. None if the logits are not linear in the weights; random changes of the weights check this. Without
    `linear`, nothing is checked, and the margin is what a small change of the weight gains.
    """
    delta = torch.zeros_like(weight).requires_grad_()
    with torch.enable_grad():
        reading = read(graph, weight_delta={site: delta})
        clean, target = class_logits(reading.logits), reading.attention[site].target
        if not clean.requires_grad:  # the logits do not depend on the weights
            return to_double(torch.zeros_like(weight))
        first, second = clean.topk(2).indices.T
        (margin,) = torch.autograd.grad(_between(clean, first, second).sum(), delta)
    if not linear:
        return to_double(margin)

    def output(change: Tensor) -> Tensor:
        return _between(class_logits(read(graph, weight_delta={site: change}).logits), first, second)[:, None]

    clean = _between(clean, first, second)[:, None]
    return to_double(margin) if _is_linear(output, clean, weight, margin.unsqueeze(2), target) else None


def _between(logits: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return (logits.gather(1, first[:, None]) - logits.gather(1, second[:, None]))[:, 0]


@torch.no_grad()
def _is_linear(output: Callable[[Tensor], Tensor], clean: Tensor, weight: Tensor, value: Tensor, row: Tensor) -> bool:
    """Return whether random changes of the weights change each row of an output as its gradient says.

    Args:
        output: The output for a change of the weights; [E, H] -> [N, C].
        clean: The output without a change, [N, C].
        weight: The weights, [E, H].
        value: The gradient, [E, H, C].
        row: The row that an edge has an effect on, [E].
    """
    generator = torch.Generator().manual_seed(0)
    ends = CHANGES[:-1] if weight.dtype is torch.half else CHANGES  # the last would overflow
    draws = [low + (high - low) * torch.rand(weight.shape, generator=generator).to(weight) for low, high in ends]
    for draw in (sign * draw for draw in draws for sign in (1, -1)):  # ReLU is linear to one side
        terms = draw.unsqueeze(-1) * value
        moved = output(draw)
        change, linear, size = moved - clean, *(segment_sum(t, row, len(clean)).sum(1) for t in (terms, terms.abs()))
        allowed = LINEAR * change.abs().amax(1) + ROUNDING * torch.maximum(size, clean.abs()).amax(1)
        if not bool(((change - linear).abs().amax(1) <= allowed).all()):
            return False
    return True


def value_vectors(read: Any, graph: Any, site: str, weight: Tensor, row: Tensor) -> Tensor | None:
    """Return d logits / d weight of each edge and head, [E, H, C], or None if the logits are not linear in the weights.

    This takes one backward pass per class. Random changes of the weights check linearity, of both signs and several
    sizes. `row` is the row of logits that an edge has an effect on, [E].
    """
    delta = torch.zeros_like(weight).requires_grad_()
    with torch.enable_grad():
        reading = read(graph, weight_delta={site: delta})
        clean = class_logits(reading.logits)
        if not clean.requires_grad:  # the logits do not depend on the weights
            return to_double(torch.zeros(*weight.shape, clean.size(1), device=weight.device))
        columns = [torch.autograd.grad(column.sum(), delta, retain_graph=True)[0] for column in clean.T]
    value = torch.stack(columns, dim=2)

    def output(change: Tensor) -> Tensor:
        return class_logits(read(graph, weight_delta={site: change}).logits)

    return to_double(value) if _is_linear(output, clean, weight, value, row) else None
