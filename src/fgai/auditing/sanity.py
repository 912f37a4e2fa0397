"""Sanity checks: would this explanation notice if the model knew nothing, or if it did not look at all?"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch_geometric.data import Data

from fgai.attention import Attention, uniform
from fgai.calling import Call
from fgai.devices import device_of
from fgai.graph import require
from fgai.methods.base import Method
from fgai.metrics import g_tvd, micro_f1, top_overlap
from fgai.reading import open_reader, read
from fgai.seeding import seeded
from fgai.topk import effective_k


@dataclass(frozen=True)
class UniformEffect:
    """What happens to the answers when every layer's attention is replaced by 1/degree."""

    g_tvd: float  # how far the answers move
    changed: float  # the share of nodes whose answer changes


def without_attention(model: nn.Module, data: Data, *, call: Call | None = None) -> UniformEffect:
    """Does the prediction use the attention at all? Near zero means that it does not.

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
    """V_k between the explanation and that of the model with its layers randomised, from the last to the first.

    Keys are the layers, in the order in which they lose their weights; each stays random. An explanation that keeps its
    top k does not depend on what the model has learnt. Nodes that cannot lose a member, for want of neighbours, do not
    count.
    """
    before, broken = read(model, data, call).explanation, copy.deepcopy(model)
    kept = {}
    with seeded(seed):
        for name, layer in reversed(list(broken.named_modules())):
            own = list(layer.parameters(recurse=False))
            for parameter in own:
                noise = torch.randn(parameter.shape, dtype=parameter.dtype).to(
                    parameter.device
                )  # the same on any device
                parameter.data = parameter.data.std(correction=0).clamp(min=0.1) * noise
            if own:
                kept[name] = _kept(before, read(broken, data, call).explanation, k)
    return kept


def label_randomisation(
    model: nn.Module, data: Data, method: Method, *, k: int | float = 5, seed: int = 0, call: Call | None = None
) -> float:
    """V_k between the explanation and that of a model trained by `method` on shuffled labels.

    `model` is the trained model; training starts from its weights randomised by `seed`. An explanation that is the same
    for shuffled labels does not explain what the labels taught.
    """
    shuffled, blank = copy.copy(data), copy.deepcopy(model)
    y = require(data, "y")
    with seeded(seed):
        shuffled.y = y[torch.randperm(len(y)).to(y.device)]
        for module in blank.cpu().modules():  # draws on the CPU are the same for any device
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()  # pyright: ignore[reportCallIssue]
    taught = method.fit(blank.to(device_of(model)), shuffled, call=call).model
    return _kept(read(model, data, call).explanation, read(taught, data, call).explanation, k)


def _kept(before: Attention, after: Attention, k: int | float) -> float:
    """The mean V_k of the nodes with more neighbours than their top k has members."""
    kept, contested = top_overlap(before, after, k), before.degree > effective_k(k, before.degree)
    return float(kept[contested.to(kept.device)].mean())
