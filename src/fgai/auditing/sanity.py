"""Sanity checks: does the explanation depend on the parameters, and does the prediction depend on the attention?"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch_geometric.data import Data

from fgai.attention import Attention, uniform
from fgai.calling import Call
from fgai.metrics import g_tvd, micro_f1, top_overlap
from fgai.reading import open_reader, read
from fgai.seeding import seeded
from fgai.topk import effective_k


@dataclass(frozen=True)
class UniformEffect:
    """The change of the predictions when the attention of all layers is replaced by 1/degree."""

    g_tvd: float  # mean total variation distance of the predictions
    changed: float  # share of nodes whose predicted class changes


def without_attention(model: nn.Module, data: Data, *, call: Call | None = None) -> UniformEffect:
    """Measure how much the predictions use the attention. Values near zero mean that they do not use it.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> without_attention(backbones.build("gat", data), data).changed <= 1.0
    True
    """
    with open_reader(model, call) as reader:
        clean = reader(data)
        flat = reader(data, edit=lambda _, attention: uniform(attention).weight)
    return UniformEffect(g_tvd(clean, flat), 1.0 - micro_f1(flat.probs, clean.probs.argmax(-1)))


def cascading_randomisation(
    model: nn.Module, data: Data, *, k: int | float = 5, seed: int = 0, call: Call | None = None
) -> Mapping[str, float]:
    """V_k between the explanation of a model and that of a copy whose layers are randomised one by one, last first.

    Keys are the layers in the order of randomisation; each stays random. If the top k does not change, the explanation
    does not depend on what the model has learnt. Nodes with at most k neighbours are ignored: their top k is fixed.
    """
    before, randomised = read(model, data, call).explanation, copy.deepcopy(model)
    overlaps = {}
    with seeded(seed):
        for name, layer in reversed(list(randomised.named_modules())):
            own = list(layer.parameters(recurse=False))
            for parameter in own:
                noise = torch.randn(parameter.shape, dtype=parameter.dtype).to(
                    parameter.device
                )  # the same on any device
                parameter.data = parameter.data.std(correction=0).clamp(min=0.1) * noise
            if own:
                overlaps[name] = _mean_overlap(before, read(randomised, data, call).explanation, k)
    return overlaps


def _mean_overlap(before: Attention, after: Attention, k: int | float) -> float:
    """The mean V_k of the nodes with more than k neighbours."""
    overlap, contested = top_overlap(before, after, k), before.degree > effective_k(k, before.degree)
    return float(overlap[contested.to(overlap.device)].mean())
