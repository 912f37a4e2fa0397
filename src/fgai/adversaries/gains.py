"""Gains: what an adversary maximises. Each is a scalar function of a reading, made from the clean reading.

The labels are the predictions of the model on the clean graph: an attacker does not know the true labels, and no label
of a test node leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as _cross_entropy
from torch.nn.functional import kl_div, one_hot

from fgai.adversaries.base import Gain
from fgai.attention import Attention, EdgeLookup
from fgai.divergence import jsd_terms
from fgai.errors import SettingError
from fgai.explanations import class_logits, one_layer, resolve
from fgai.reading import Reading
from fgai.registry import Registry
from fgai.settings import check_sequence
from fgai.topk import topk_loss, topk_mask

GainOf = Callable[..., Gain]  # clean reading -> gain; gains on the explanation also take its name
CLASS_PREFIX = "class:"
OWN_GAIN = "the gain of the call"  # the objective of a member that maximises no surrogate


class GainRegistry(Registry[GainOf]):
    """Gains by name.

    `class:C` is the mean log-probability of class C, for each class of the model. Gains on the explanation attack the
    attention of the last layer; with the name of another explanation, such as `soft-top-k:tree`, they attack that.

    >>> float(GAINS["class:2"](Reading(torch.zeros(1, 3), {}))(Reading(torch.zeros(1, 3), {})))
    -1.099
    >>> GAINS["soft-top-k:tree"].keywords
    {'explanation': 'tree'}
    """

    def __getitem__(self, name: str) -> GainOf:
        kind, _, rest = str(name).partition(":")
        if f"{kind}:" == CLASS_PREFIX and rest.isascii() and rest.isdecimal() and len(rest) < 10:
            return lambda clean: class_log_probability(clean, int(rest))
        if rest and kind in ON_EXPLANATIONS:
            resolve(rest)  # raises if there is no such explanation
            return partial(super().__getitem__(kind), explanation=rest)
        return super().__getitem__(name)


GAINS = GainRegistry("gain")
ON_EXPLANATIONS = ("attention-divergence", "attention-divergence-kept", "soft-top-k", "top-k-loss")


def edge_weights(reading: Reading, explanation: str = "last") -> Attention:
    """Return the explanation of a reading as attention with one head, with gradients.

    It is the attention of a layer, or the sum of the weights of each edge over all nodes, scaled to sum to one over the
    edges of each target.
    """
    one = one_layer(explanation, reading.attention)
    return resolve(explanation)(reading).edge_attention() if one is None else one.mean_heads()


@GAINS.register("cross-entropy")
def cross_entropy(clean: Reading) -> Gain:
    """Prediction: the mean cross-entropy to the clean predictions of the model.

    >>> clean, now = Reading(torch.tensor([[0.0, 2.0]]), {}), Reading(torch.tensor([[1.0, 0.0]]), {})
    >>> float(cross_entropy(clean)(now))
    1.313
    """
    predictions, nodes = binary_logits(clean).argmax(-1), len(clean.logits)
    return lambda now: _cross_entropy(binary_logits(now)[:nodes], predictions)


@GAINS.register("kl")
def kl(clean: Reading) -> Gain:
    """Prediction: the mean KL(clean | now) of the predicted distributions.

    >>> clean, now = Reading(torch.tensor([[0.0, 2.0]]), {}), Reading(torch.tensor([[1.0, 0.0]]), {})
    >>> float(kl(clean)(now))
    0.829
    """
    before, nodes = binary_logits(clean).log_softmax(-1).detach(), len(clean.logits)
    return lambda now: kl_div(
        binary_logits(now)[:nodes].log_softmax(-1), before, reduction="batchmean", log_target=True
    )


@GAINS.register("margin")
def margin(clean: Reading) -> Gain:
    """Prediction: the mean of tanh(best other logit - own logit), which saturates on misclassified nodes.

    >>> clean, now = Reading(torch.tensor([[0.0, 2.0]]), {}), Reading(torch.tensor([[1.0, 0.0]]), {})
    >>> float(margin(clean)(now))
    0.762
    """
    predictions, nodes = binary_logits(clean).argmax(-1), len(clean.logits)
    own = one_hot(predictions, binary_logits(clean).size(1)).bool()

    def gain(now: Reading) -> Tensor:
        logits = binary_logits(now)[:nodes]
        other = logits.masked_fill(own, -torch.inf).max(-1).values
        return (other - logits[own]).tanh().mean()

    return gain


def class_log_probability(clean: Reading, label: int) -> Gain:
    """Prediction: the mean log-probability of the class `label`, over the nodes of the clean reading.

    >>> float(class_log_probability(Reading(torch.zeros(1, 2), {}), 0)(Reading(torch.zeros(1, 2), {})))
    -0.693
    """
    nodes, classes = binary_logits(clean).shape
    if label >= classes:
        raise SettingError(f"the gain is class:{label}, but the model has the classes 0 to {classes - 1}; name one")
    return lambda now: binary_logits(now)[:nodes].log_softmax(-1)[:, label].mean()


@GAINS.register("flips")
def flips(clean: Reading) -> Gain:
    """Prediction: the share of nodes whose predicted class changed; it has no gradient.

    >>> clean, now = Reading(torch.tensor([[0.0, 2.0]]), {}), Reading(torch.tensor([[1.0, 0.0]]), {})
    >>> float(flips(clean)(now))
    1.0
    """
    predictions, nodes = binary_logits(clean).argmax(-1), len(clean.logits)
    return lambda now: (binary_logits(now)[:nodes].argmax(-1) != predictions).float().mean()


@GAINS.register("attention-divergence")
def attention_divergence(clean: Reading, explanation: str = "last") -> Gain:
    """Explanation: the mean over nodes of JSD(clean, now) of the weights of the clean edges.

    >>> from fgai.attention import Attention
    >>> edges, weights = torch.tensor([[0, 1], [0, 0]]), torch.tensor([[[0.9], [0.1]], [[0.5], [0.5]]])
    >>> clean, now = (Reading(torch.zeros(1, 2), {"": Attention(weight, edges, 1)}) for weight in weights)
    >>> float(attention_divergence(clean)(now))
    0.102
    """
    before = edge_weights(clean.detach(), explanation).coalesce()
    nodes, after = int((before.degree > 0).sum()), EdgeLookup(before.edge_index)
    return lambda now: jsd_terms(before.weight, after(edge_weights(now, explanation))).sum() / nodes


@GAINS.register("attention-divergence-kept")
def divergence_kept(clean: Reading, explanation: str = "last") -> Gain:
    """Explanation: `attention-divergence` while no predicted class changes; below 0 if one changes.

    JSD - [a prediction changed] (1 + sum over the changed nodes of best other logit - own logit). JSD < 1, so the gain
    of a perturbation that changes a prediction is below that of none, and its gradient leads back to the clean
    predictions.

    >>> from fgai.attention import Attention
    >>> edges, weights = torch.tensor([[0, 1], [0, 0]]), torch.tensor([[[0.9], [0.1]], [[0.5], [0.5]]])
    >>> logits = torch.tensor([[[0.0, 2.0]], [[1.0, 0.0]]])
    >>> clean, now = (Reading(logits[i], {"": Attention(weights[i], edges, 1)}) for i in (0, 1))
    >>> float(divergence_kept(clean)(now))
    -1.898
    """
    divergence, predictions = attention_divergence(clean, explanation), binary_logits(clean).argmax(-1)
    own, nodes = one_hot(predictions, binary_logits(clean).size(1)).bool(), len(clean.logits)

    def gain(now: Reading) -> Tensor:
        logits = binary_logits(now)[:nodes]
        changed = logits.argmax(-1) != predictions
        if not bool(changed.any()):
            return divergence(now)
        other = logits[changed].masked_fill(own[changed], -torch.inf).max(-1).values
        return divergence(now) - 1 - (other - logits[changed][own[changed]]).sum()

    return gain


@GAINS.register("soft-top-k")
def soft_topk(clean: Reading, k: int = 5, explanation: str = "last") -> Gain:
    """Explanation: the hinge loss between the clean top k and the largest other weight, mean over nodes.

    Per node, sum over j in the clean top k of relu(0.1 - (w_j - max of the others)), with w in units of 1/degree. The
    gap between nearly equal weights decides whether the top k changes.

    >>> from fgai.attention import Attention
    >>> edges, weights = torch.tensor([[0, 1], [0, 0]]), torch.tensor([[[0.9], [0.1]], [[0.5], [0.5]]])
    >>> clean, now = (Reading(torch.zeros(1, 2), {"": Attention(weight, edges, 1)}) for weight in weights)
    >>> float(soft_topk(clean, k=1)(now))
    0.100
    """
    before = edge_weights(clean.detach(), explanation).coalesce()
    inside = topk_mask(before.weight, before.target, before.num_targets, k)[:, 0]
    unit, after = before.degree.to(before.weight.dtype), EdgeLookup(before.edge_index)

    def gain(now: Reading) -> Tensor:
        weight = after(edge_weights(now, explanation))[:, 0] * unit[before.target]
        lowest = weight.new_full((before.num_targets,), -torch.inf)
        rival = lowest.scatter_reduce(0, before.target[~inside], weight[~inside], "amax")
        gap = weight[inside] - rival[before.target[inside]]
        return (0.1 - gap[gap.isfinite()]).clamp(min=0).sum() / max(int((rival > -torch.inf).sum()), 1)

    return gain


@GAINS.register("top-k-loss")
def topk_distance(clean: Reading, k: int = 5, explanation: str = "last") -> Gain:
    """Explanation: the paper's surrogate L_k(clean, now), mean over nodes.

    >>> from fgai.attention import Attention
    >>> edges, weights = torch.tensor([[0, 1], [0, 0]]), torch.tensor([[[0.9], [0.1]], [[0.5], [0.5]]])
    >>> clean, now = (Reading(torch.zeros(1, 2), {"": Attention(weight, edges, 1)}) for weight in weights)
    >>> float(topk_distance(clean, k=1)(now))
    0.400
    """
    before = edge_weights(clean.detach(), explanation).coalesce()
    after = EdgeLookup(before.edge_index)

    def gain(now: Reading) -> Tensor:
        weight = after(edge_weights(now, explanation))
        return topk_loss(before.weight, weight, before.target, before.num_targets, k).mean()

    return gain


def binary_logits(reading: Reading) -> Tensor:
    """Return logits with a column per class; a single logit z becomes (0, z); [N, C >= 2].

    Half precision is converted to float32: a sum of logarithms overflows in float16.
    """
    return class_logits(reading.logits)


def objectives(gain: Gain, clean: Reading, surrogates: Iterable[str]) -> dict[str, Gain]:
    """Return what the members of an attack maximise, by name: the gain of the call, and the surrogates."""
    return {OWN_GAIN: gain, **{name: GAINS[name](clean) for name in surrogates}}


def check_surrogates(names: tuple[str, ...], *others: str) -> None:
    """Raise unless each name is that of a gain or one of `others`.

    >>> check_surrogates(("kl", "class:2"))
    """
    check_sequence(0, surrogates=names)
    if unknown := [name for name in names if name not in others and name not in GAINS]:
        raise SettingError(f"surrogates={unknown}; give gains among {', '.join([*GAINS, *others])}, or class:0, ...")
