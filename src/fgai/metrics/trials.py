"""Metrics of the explanation of a trial, which may be the attention of one layer, or have weights for each node."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fgai.attention import Attention
from fgai.explanations import one_layer, sites_of
from fgai.metrics.explanation import g_jsd, mean_entropy, mean_nonuniformity, shift, top_overlap
from fgai.trial import Trial


def node_overlap(trial: Trial) -> tuple[Tensor, Tensor]:
    """Compute V_k of each node: all nodes if the explanation is one layer, else a sample, `trial.nodes`.

    Returns:
        The nodes, [n], and their overlap, NaN for nodes without edges, [n].
    """
    if trial.layers is None:
        return trial.nodes, trial.difference.overlap
    overlap = top_overlap(*trial.layers)
    return torch.arange(len(overlap), device=overlap.device), overlap


def node_shift(trial: Trial) -> Tensor:
    """Compute how far the explanation of each node of `node_overlap` changed: 1/2 sum |w - w'|, or its JSD; [n]."""
    return trial.difference.jsd if trial.layers is None else shift(*trial.layers)


def mean_overlap(trial: Trial) -> float:
    """Compute the mean of V_k over the nodes with edges."""
    return float(node_overlap(trial)[1].nanmean())


def explanation_jsd(trial: Trial) -> float:
    """Compute g-JSD: the sum of the JSD of the nodes, divided by the number of edges of their explanations."""
    if trial.layers is not None:
        return g_jsd(*trial.layers)
    difference = trial.difference
    return float(difference.jsd.nansum() / difference.edges.sum().clamp(min=1))


def attention_nonuniformity(trial: Trial) -> float:
    """Compute the mean l1 distance between attention and 1/degree; mean over the layers of the explanation."""
    return float(np.mean([mean_nonuniformity(layer, nodes) for layer, nodes in _layers(trial)]))


def attention_entropy(trial: Trial) -> float:
    """Compute the mean entropy of attention, divided by that of uniform attention; mean over the layers."""
    return float(np.mean([mean_entropy(layer, nodes) for layer, nodes in _layers(trial)]))


def _layers(trial: Trial) -> list[tuple[Attention, int]]:
    """The attention of the layers of the explanation, and the number of original nodes that each computes."""
    one = one_layer(trial.explanation, trial.now.attention)
    if one is not None:
        before = one_layer(trial.explanation, trial.clean.attention)
        return [(one, (before or one).num_targets)]
    clean, now = trial.clean.attention, trial.now.attention
    return [(now[site], clean[site].num_targets) for site in sites_of(trial.explanation, clean)]
