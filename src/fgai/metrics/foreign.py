"""Explanations from elsewhere, measured by the same functions: any PyG `Explanation`, and a random one as the floor."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch_geometric.explain import Explanation

from fgai.attention import Attention
from fgai.errors import DataError
from fgai.graph import sum_by


def as_attention(explanation: Explanation) -> Attention:
    """An edge mask as attention: scaled to sum to one over the edges of a target, so that g-JSD, V_k and F apply.

    >>> mask = torch.tensor([3.0, 1.0, 5.0])
    >>> edges = torch.tensor([[0, 1, 2], [2, 2, 0]])
    >>> as_attention(Explanation(x=torch.ones(3, 1), edge_index=edges, edge_mask=mask)).weight.flatten()
    tensor([0.7500, 0.2500, 1.0000])
    """
    mask, edges = explanation.get("edge_mask"), explanation.get("edge_index")
    if not isinstance(mask, Tensor) or not isinstance(edges, Tensor):
        raise DataError("the explanation has no `edge_mask`; explain with edge_mask_type='object'")
    nodes = int(explanation.num_nodes or 0)
    weight = mask.detach().clamp(min=0)[:, None]
    total = sum_by(weight, edges[1], nodes)[edges[1]]
    share = torch.where(total > 0, weight / total.clamp(min=torch.finfo(weight.dtype).tiny), 0.0)
    return Attention(share, edges, nodes)


def random_attention(attention: Attention, seed: int = 0) -> Attention:
    """Random weights on the same edges, summing to one over a target: the floor for any explanation."""
    once, generator = attention.mean().coalesce(), torch.Generator().manual_seed(seed)
    draw = torch.rand(once.weight.shape, generator=generator, dtype=once.weight.dtype).to(once.weight.device)
    total = sum_by(draw, once.target, once.num_targets)
    return replace(once, weight=draw / total[once.target])
