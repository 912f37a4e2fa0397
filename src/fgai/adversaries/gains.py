"""What an adversary wants: a scalar of a reading, made from the clean reading that it wants to leave.

Labels are the model's own clean answers: an attacker does not know the truth, and nothing leaks from the test nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as _cross_entropy
from torch.nn.functional import kl_div, one_hot

from fgai.adversaries.base import Gain
from fgai.attention import EdgeLookup
from fgai.divergence import jsd_terms
from fgai.errors import SettingError
from fgai.reading import Reading
from fgai.registry import Registry
from fgai.topk import topk_loss, topk_mask

GainOf = Callable[[Reading], Gain]  # from the clean reading
AIMED = "class:"


class GainRegistry(Registry[GainOf]):
    """The gains by name; `class:C` aims at class C.

    >>> GAINS["class:2"](Reading(torch.zeros(1, 3), {}))(Reading(torch.tensor([[0.0, 0.0, 0.0]]), {}))
    tensor(-1.0986)
    """

    def __getitem__(self, name: str) -> GainOf:
        number = name.removeprefix(AIMED)
        if name.startswith(AIMED) and number.isdecimal():
            return lambda clean: towards(clean, int(number))
        return super().__getitem__(name)


GAINS = GainRegistry("gain")


@GAINS.register("cross-entropy")
def cross_entropy(clean: Reading) -> Gain:
    """Prediction: the mean cross-entropy to the model's own clean answers."""
    answers, nodes = binary_logits(clean).argmax(-1), len(clean.logits)
    return lambda now: _cross_entropy(binary_logits(now)[:nodes], answers)


@GAINS.register("kl")
def kl(clean: Reading) -> Gain:
    """Prediction: the mean KL(clean | now) of the predicted distributions."""
    before, nodes = binary_logits(clean).log_softmax(-1).detach(), len(clean.logits)
    return lambda now: kl_div(
        binary_logits(now)[:nodes].log_softmax(-1), before, reduction="batchmean", log_target=True
    )


@GAINS.register("margin")
def margin(clean: Reading) -> Gain:
    """Prediction: the mean of tanh(best other logit - own logit), which does not chase nodes that have fallen."""
    answers, nodes = binary_logits(clean).argmax(-1), len(clean.logits)
    own = one_hot(answers, binary_logits(clean).size(1)).bool()

    def gain(now: Reading) -> Tensor:
        logits = binary_logits(now)[:nodes]
        other = logits.masked_fill(own, -torch.inf).max(-1).values
        return (other - logits[own]).tanh().mean()

    return gain


@GAINS.register("aimed")
def aimed(clean: Reading) -> Gain:
    """Prediction: the mean log-probability of one class, the second answer of most nodes; `class:C` names another."""
    second = binary_logits(clean).topk(2, dim=1).indices[:, 1]
    return towards(clean, int(second.bincount().argmax()))


def towards(clean: Reading, label: int) -> Gain:
    """The mean log-probability of class `label`, over the nodes of the clean reading."""
    nodes, classes = binary_logits(clean).shape
    if label >= classes:
        raise SettingError(f"class {label} was asked for, and the model has the classes 0 to {classes - 1}; name one")
    return lambda now: binary_logits(now)[:nodes].log_softmax(-1)[:, label].mean()


@GAINS.register("flips")
def flips(clean: Reading) -> Gain:
    """Prediction: the share of answers that changed; it has no gradient, it judges."""
    answers, nodes = binary_logits(clean).argmax(-1), len(clean.logits)
    return lambda now: (binary_logits(now)[:nodes].argmax(-1) != answers).float().mean()


@GAINS.register("attention-divergence")
def attention_divergence(clean: Reading) -> Gain:
    """Explanation: the mean over nodes of JSD(clean, now) of the last layer's attention on the clean edges."""
    before = clean.explanation.detach().mean().coalesce()
    nodes, after = int((before.degree > 0).sum()), EdgeLookup(before.edge_index)
    return lambda now: jsd_terms(before.weight, after(now.explanation.mean())).sum() / nodes


@GAINS.register("attention-divergence-kept")
def divergence_kept(clean: Reading) -> Gain:
    """Explanation: attention-divergence where every answer stays; where one is lost, less than doing nothing gains.

    JSD - [some answer is lost] (1 + sum over the lost of best other logit - own logit): JSD < 1, so only perturbations
    that change no answer count, and where some did the gradient leads back to those.
    """
    look, answers = attention_divergence(clean), binary_logits(clean).argmax(-1)
    own, nodes = one_hot(answers, binary_logits(clean).size(1)).bool(), len(clean.logits)

    def gain(now: Reading) -> Tensor:
        logits = binary_logits(now)[:nodes]
        lost = logits.argmax(-1) != answers
        if not bool(lost.any()):
            return look(now)
        other = logits[lost].masked_fill(own[lost], -torch.inf).max(-1).values
        return look(now) - 1 - (other - logits[lost][own[lost]]).sum()

    return gain


@GAINS.register("soft-top-k")
def soft_topk(clean: Reading, k: int = 5) -> Gain:
    """Explanation: how far the kept weights of the clean top k fall below the best of the others, mean over nodes.

    For each node the sum over its top k of relu(margin - (w_j - max of the others)), in units of 1/degree: what flips a
    top k is the gap between near-equal weights.
    """
    before = clean.explanation.detach().mean().coalesce()
    inside = topk_mask(before.weight, before.target, before.num_targets, k)[:, 0]
    unit, after = before.degree.to(before.weight.dtype), EdgeLookup(before.edge_index)

    def gain(now: Reading) -> Tensor:
        weight = after(now.explanation.mean())[:, 0] * unit[before.target]
        floor = weight.new_full((before.num_targets,), -torch.inf)
        rival = floor.scatter_reduce(0, before.target[~inside], weight[~inside], "amax")
        gap = weight[inside] - rival[before.target[inside]]
        return (0.1 - gap[gap.isfinite()]).clamp(min=0).sum() / max(int((rival > -torch.inf).sum()), 1)

    return gain


@GAINS.register("top-k-loss")
def topk_distance(clean: Reading, k: int = 5) -> Gain:
    """Explanation: the paper's surrogate L_k(clean, now), mean over nodes."""
    before = clean.explanation.detach().mean().coalesce()
    after = EdgeLookup(before.edge_index)

    def gain(now: Reading) -> Tensor:
        weight = after(now.explanation.mean())
        return topk_loss(before.weight, weight, before.target, before.num_targets, k).mean()

    return gain


@GAINS.register("both")
def both(clean: Reading) -> Gain:
    """Prediction and explanation: KL of the answers plus JSD of the attention, each per node."""
    answer, look = kl(clean), attention_divergence(clean)
    return lambda now: answer(now) + look(now)


def binary_logits(reading: Reading) -> Tensor:
    """Logits with a column per class, also where the model gives one logit; [N, C >= 2]."""
    if reading.logits.dim() == 1 or reading.logits.size(1) == 1:
        yes = reading.logits.reshape(-1, 1)
        return torch.cat([torch.zeros_like(yes), yes], dim=1)
    return reading.logits
