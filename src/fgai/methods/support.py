"""Attention in proportion to support: what each neighbour contributes to the prediction of a node.

The support of j for i is the margin that the value vector v_j of the last layer gives to the predicted class of i over
the second one. Centred within the neighbours of i and divided by its standard deviation over the graph, it is the score
of the target:

    s_ij = m_i(v_j) - mean over i's neighbours,    target = softmax_j(sharpness * s_ij / deviation of s)

If the model answers for graphs, the support of j for i is the derivative of the margin of their graph by the weight
a_ij, at any layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fgai.attention import Attention, sharpened
from fgai.errors import SettingError
from fgai.explanations import edge_margins
from fgai.graph import segment_sum
from fgai.items import items_of
from fgai.reading import Reader


def support_attention(read: Reader, graph: Any, site: str, attention: Attention, sharpness: float) -> Attention:
    """Return attention whose scores are the standardised support of each neighbour, times `sharpness`.

    Args:
        read: Reader of the model, in evaluation mode.
        graph: The graph.
        site: The attention layer. The logits of nodes must be linear in its weights.
        attention: The attention of that layer.
        sharpness: Factor of the scores.

    Returns:
        The attention, on the same edges and heads.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> site, attention = list(read(data).detach().attention.items())[-1]
    >>> support_attention(read, data, site, attention, 1.5).weight.shape == attention.weight.shape
    True
    """
    margin = edge_margins(read, graph, site, attention.weight, linear=items_of(graph).kind != "graphs")
    if margin is None:
        raise SettingError(
            f"target='support' needs logits that are linear in the attention of '{site}', and a nonlinear operation "
            "follows it; use target='vanilla'"
        )
    return sharpened(replace(attention, score=_standardised(margin.to(attention.weight), attention)), sharpness)


def _standardised(margin: Tensor, attention: Attention) -> Tensor:
    """Return the margins centred within the neighbours of each node, over their deviation in the graph; [E, H]."""
    count = attention.degree.clamp(min=1)[:, None]
    mean = segment_sum(margin, attention.target, attention.num_targets) / count
    centred = margin - mean[attention.target]
    spread = centred.square().mean(0).sqrt().clamp(min=torch.finfo(margin.dtype).tiny)
    return centred / spread
