"""Sanity checks: does the explanation depend on the parameters, and does the prediction depend on the attention?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.attention import uniform
from fgai.calling import Call
from fgai.copying import copy_model
from fgai.explanations import Attribution, Explanation, compare_nodes, sites_of
from fgai.metrics import g_tvd, micro_f1
from fgai.metrics.explanation import TOP
from fgai.reading import Reading, open_reader
from fgai.seeding import seeded
from fgai.topk import effective_k
from fgai.trial import sample_nodes


@dataclass(frozen=True)
class UniformEffect:
    """The change of the predictions when the attention that explains is replaced by 1/degree."""

    g_tvd: float  # mean total variation distance of the predictions
    changed: float  # share of nodes whose predicted class changes


def without_attention(
    model: nn.Module,
    data: Data,
    explanation: str | Explanation = "tree",
    *,
    call: Call | None = None,
    known: Reading | None = None,
) -> UniformEffect:
    """Measure how much the predictions use the attention. Values near zero mean that they do not use it.

    Args:
        model: The model. It is not changed.
        data: The graph.
        explanation: Name of the explanation. The attention of the layers that it is about is replaced.
        call: How to call the model; by default, by the signature of `forward`.
        known: The reading of `model`, if the caller has it.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> without_attention(backbones.build("gat", data), data).changed <= 1.0
    True
    """
    with open_reader(model, call) as reader:
        clean = reader.checked(data) if known is None else known
        sites = sites_of(explanation, clean.attention)
        flat = reader(data, edit=lambda site, a: uniform(a).weight if site in sites else a.weight)
    return UniformEffect(g_tvd(clean, flat), 1.0 - micro_f1(flat.probs, clean.probs.argmax(-1)))


def cascading_randomisation(
    model: nn.Module,
    data: Data,
    explanation: str | Explanation = "tree",
    *,
    k: int | float = 5,
    seed: int = 0,
    call: Call | None = None,
) -> Mapping[str, float]:
    """V_k between the explanation of a model and that of a copy whose layers are randomised one by one, last first.

    Keys are the layers in the order of randomisation; each stays random. If the top k does not change, the explanation
    does not depend on what the model has learnt. Nodes with at most k edges are ignored: their top k is fixed.

    Args:
        model: The model. It is not changed.
        data: The graph.
        explanation: Name of the explanation, see `fgai.explanations`.
        k: Size of the top k: a number of edges, or a fraction of them.
        seed: Random seed of the parameters.
        call: How to call the model; by default, by the signature of `forward`.

    Returns:
        The mean of V_k over nodes, by layer; NaN if no node has more than k edges.
    """
    before, randomised, overlaps = _attribution(model, data, explanation, call), copy_model(model), {}
    with seeded(seed):
        for name, layer in reversed(list(randomised.named_modules())):
            if _randomise(layer):
                overlaps[name] = _mean_overlap(before, _attribution(randomised, data, explanation, call), k)
    return overlaps


def overlap_at_random(
    model: nn.Module,
    data: Data,
    explanation: str | Explanation = "tree",
    *,
    call: Call | None = None,
    known: Attribution | None = None,
    nodes: Tensor | None = None,
) -> float:
    """V_5 between the explanation of a model and that of a copy with random parameters: the end of the cascade.

    Args:
        model: The model. It is not changed.
        data: The graph.
        explanation: Name of the explanation, see `fgai.explanations`.
        call: How to call the model; by default, by the signature of `forward`.
        known: The explanation of `model`, if the caller has it.
        nodes: The nodes to compare, [n]; by default a sample.

    Returns:
        The mean over nodes with more than 5 edges; NaN if there is none.
    """
    before = _attribution(model, data, explanation, call) if known is None else known
    randomised = copy_model(model)
    with seeded(0):
        for _, layer in reversed(list(randomised.named_modules())):
            _randomise(layer)
    return _mean_overlap(before, _attribution(randomised, data, explanation, call), TOP, nodes)


def _attribution(model: nn.Module, data: Data, explanation: str | Explanation, call: Call | None) -> Attribution:
    with open_reader(model, call) as reader:
        return reader.marked(data).attribution(explanation, read=reader, graph=data)


def _randomise(layer: nn.Module) -> bool:
    """Replace the parameters that a module holds itself; whether there are any."""
    own = list(layer.parameters(recurse=False))
    for parameter in own:
        noise = torch.randn(parameter.shape, dtype=parameter.dtype).to(parameter.device)  # the same on any device
        parameter.data = parameter.data.std(correction=0).clamp(min=0.1) * noise
    return bool(own)


def _mean_overlap(before: Attribution, after: Attribution, k: int | float, nodes: Tensor | None = None) -> float:
    """The mean V_k of the nodes with more than k edges."""
    difference = compare_nodes(before, after, sample_nodes(before) if nodes is None else nodes, k)
    return float(difference.overlap[difference.edges > effective_k(k, difference.edges)].mean())
