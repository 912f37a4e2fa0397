"""Certified training: the cross-entropy of the worst logits that any injection can cause.

The bound is that of `fgai.certificates.injections` with one interval for each quantity, so that it is differentiable
and cheap enough for each step of a training. With the prediction c* of a node, y_j = u_j[c*] - u_j[c], and bounds of
all scores s_j after the injection of m nodes u, let

    M = (sum_j least e^s_j y_j + m min(0, largest e^s_u least y_u)) / (sum_j e^s_j + m e^s_u)

with the largest scores in the denominator. Where M > 0, logit_c* - logit_c >= M, and c does not replace c*. Where
M <= 0, nothing is known, and M is only a direction for the training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from fgai.calling import Call
from fgai.certificates.chain import Chain, NoBoundError, parse_chain, run_layers, segment_max
from fgai.certificates.deletions import edge_values, least_term, least_values, span
from fgai.certificates.injections import check_features, support, two_layers
from fgai.certificates.layers import Activation, Layer, recorded_calls
from fgai.certificates.perturbation_sets import Injection
from fgai.devices import device_of, on_device
from fgai.errors import SettingError
from fgai.graph import segment_sum
from fgai.items import items_of
from fgai.methods.base import Graphs

RAMP = 0.6  # share of the epochs after which the whole set is attacked
CLIP = 30.0  # largest logit in the loss: a bound can be as large as the weights


@dataclass(frozen=True)
class WorstCase:
    """The loss of certified training for one graph and one set of injections.

    Args:
        names: The two attention layers of the model.
        act: The activation between them.
        x: The features, [N, F].
        links: The edges without self-loops, [2, E].
        prediction: The class that must stay, that of the model before the training, [N].
        injection: What the attacker may inject.
    """

    names: tuple[str, str]
    act: Activation
    x: Tensor
    links: Tensor
    prediction: Tensor
    injection: Injection

    @classmethod
    def of(cls, model: nn.Module, data: Graphs, injection: Injection, call: Call | None = None) -> Self:
        """Return the loss for a trained model.

        Raises:
            SettingError: No bound is known for the model, the data or the injections.
        """
        if not isinstance(data, Data) or items_of(data).kind != "nodes":
            raise SettingError(
                "certified training needs one graph whose nodes are classified: a bound of a sampled batch is none of "
                "the graph; give certified=0"
            )
        device = device_of(model)
        if injection.neighbours:
            raise SettingError(f"{injection}: certified training knows no bound with neighbours; give neighbours=0")
        names = {module: name for name, module in model.named_modules()}
        try:
            with recorded_calls(model) as calls:
                chain = parse_chain(model, on_device(data, device), call)
            two_layers(chain)
            check_features(chain, injection)
        except NoBoundError as error:
            raise SettingError(f"certified training is not possible: {error}") from error
        first, last = (names[one.layer] for one in calls[:2])
        links = torch.stack([chain.source, chain.target]).to(device)  # a chain may be on the CPU, where float64 is
        x = chain.x.to(next(model.parameters()))
        return cls((first, last), chain.act, x, links, chain.prediction.to(device), injection)

    def loss(self, model: nn.Module, progress: float) -> Tensor:
        """Return the mean cross-entropy of the worst logits, with gradients to the parameters.

        Args:
            model: The model in training.
            progress: Share of the training that is over. The set grows from the hull of the real nodes to the whole
                set during the first part of the training, and the loss fades in twice as fast.
        """
        share = min(1.0, progress / RAMP)
        layers = [Layer.of(model.get_submodule(name), differentiable=True) for name in self.names]
        chain = run_layers(layers, self.act, self.x, self.links)
        worst = worst_logits(chain, self.injection, self.prediction, share)
        return min(1.0, 2 * share) * cross_entropy(worst.clamp(-CLIP, CLIP), self.prediction)


def worst_logits(chain: Chain, injection: Injection, prediction: Tensor, share: float = 1.0) -> Tensor:
    """Return -M for each class, and 0 for the prediction; [N, C]. Where all others are below 0, the class is certain.

    Args:
        chain: Two layers of GATConv.
        injection: What the attacker may inject, at the node only.
        prediction: The class c* of each node.
        share: How far injected features reach from the hull of the real ones (0) to the whole set (1).
    """
    first, last = two_layers(chain)
    source, target, nodes = chain.source, chain.target, chain.nodes
    value, score = first.values(chain.x), chain.x @ first.source.t()

    def between(far: Tensor, near: Tensor) -> Tensor:
        return near + share * (far - near)

    low = between(first.shift - support(-first.value, injection), value.amin(0))
    high = between(first.shift + support(first.value, injection), value.amax(0))
    largest = between(support(first.source, injection), score.amax(0))
    added = first.leaky(largest + chain.x @ first.target.t()) + math.log(injection.nodes)
    mass = (added - chain.normal).sigmoid().unsqueeze(2)  # the most weight that the injected nodes get in layer 1
    own = [chain.act(chain.pre + mass * (end - chain.pre)).flatten(1) for end in (low, high)]
    new = [chain.act(end).flatten()[None] for end in (low, high)]
    own_p, own_d = span(last.source[0], *own), span(last.target[0], *own)
    new_p = span(last.source[0], *new)[1]
    matrix, shift = last.value[0], last.shift[0]
    new_y = (span(matrix[:, None] - matrix, *new)[0][0] + shift[:, None] - shift)[prediction].clamp(max=0)
    edge_y, own_y = edge_values(chain, prediction), least_values(last, prediction, *own)
    p = (chain.hidden @ last.source[0])[source]
    margins = []
    for kappa in (1.0, last.slope):  # all scores minus kappa D, which cancels: the larger of two bounds counts

        def scores(p: Tensor, d: tuple[Tensor, Tensor], kappa: float = kappa) -> Tensor:
            return torch.stack([last.leaky(p + end) - kappa * end for end in d])

        edge = scores(p, (own_d[0][target], own_d[1][target]))
        loop = scores(own_p[0], own_d).amin(0), scores(own_p[1], own_d).amax(0)
        new_score = scores(new_p, own_d).amax(0)
        top = torch.maximum(torch.maximum(loop[1], new_score), segment_max(edge.amax(0), target, nodes)).detach()
        small, large = edge.amin(0) - top[target], edge.amax(0) - top[target]
        injected = injection.nodes * (new_score - top).exp()
        total = segment_sum(least_term(small, large, edge_y), target, nodes)
        total = total + least_term(loop[0] - top, loop[1] - top, own_y) + injected[:, None] * new_y
        size = segment_sum(large.exp(), target, nodes) + (loop[1] - top).exp() + injected
        margins.append(total / size[:, None])
    return -torch.maximum(*margins).scatter(1, prediction[:, None], 0.0)
