"""Doubts about an attack: why "nothing changed" under it says little, so that `stable` is `unknown` and not `yes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fgai.adversaries import GAINS, AttackResult, SingleTarget, Threat
from fgai.adversaries.gains import ON_EXPLANATIONS
from fgai.metrics.explanation import TOP
from fgai.modes import frozen_params
from fgai.reading import Reading
from fgai.trial import Trial

MOST = 0.5  # share of the nodes, or of the columns of features, from which on a doubt is about the whole result
NARROW = 10.0  # how many times the features of the graph exceed those of injected nodes before these look harmless
LARGE_VALUES = 0.99  # the quantile of a column that is compared with the box: a few outliers do not decide


def doubt_about(clean: Trial, trials: Sequence[Trial], threat: Threat) -> str:
    """Return why survival of this attack says little, as a clause; empty if nothing is known against it.

    Args:
        clean: The trial of the clean graph.
        trials: The attacked trials.
        threat: The threat model of the attack.
    """
    if not any(map(has_slope, trials)):
        return "the answers have no slope in what the attack changes, so no attack by gradient can tell"
    if isinstance(threat.adversary, SingleTarget):
        return (
            "the attack is on one node, and means over all nodes do not show it; attack many nodes, each by itself, "
            "with SingleTarget.sweep"
        )
    if all(saturated_share(trial, threat) > MOST for trial in trials):
        return (
            f"the logits are so far apart that the gain {threat.gain} has no slope at most nodes; give the threat "
            "model 'strongest', or divide the logits by a constant in call="
        )
    if (share := narrow_columns(clean.graph.get("x"), threat.adversary)) >= MOST:
        box = list(getattr(threat.adversary, "box", ()))
        return (
            f"injected features lie in {box}, and those of the graph are more than {NARROW:g} "
            f"times as large in {share:.0%} of the columns; give box=None, the range of the data"
        )
    if not any(_can_change(trial) for trial in trials):
        return f"no node has more than {TOP} edges, so its top {TOP} cannot change"
    return ""


def has_slope(trial: Trial) -> bool:
    """Return whether the answers of an attacked trial have a gradient in what the attack changed.

    That is the features, of injected nodes or of others, or else the attention scores of links. Without a gradient (a
    model that rounds its features, or cuts links), the attack found what chance found. Features are tested as the
    attack left them and near 0. True if the attack changed neither.
    """
    if trial.reference is None or not isinstance(trial.now, AttackResult):
        return True
    change, graph = trial.now.perturbation, trial.reference.graph
    features = {name: getattr(change, name) for name in ("x", "x_delta")}
    features = {name: rows for name, rows in features.items() if rows is not None and len(rows)}
    if features:
        starts = [{name: scale * rows for name, rows in features.items()} for scale in (1.0, 0.1)]
        return any(
            _has_gradient(lambda at: replace(change, **at).read(trial.read, graph), start, trial) for start in starts
        )
    if change.added.size(1) or change.dropped.size(1):
        scores = {site: torch.zeros_like(a.weight) for site, a in trial.now.attention.items()}
        return _has_gradient(lambda at: trial.read(trial.graph, score_delta=at), scores, trial)
    return True


def saturated_share(trial: Trial, threat: Threat) -> float:
    """Return the share of the nodes with an unchanged prediction at which the gain has no slope in the logits.

    Cross-entropy has none where the probability of the prediction is 1 and all others are 0 in floating point. 0 for
    gains on explanations, for gains without a gradient, and for attacks that also maximise surrogates.
    """
    if threat.gain.partition(":")[0] in ON_EXPLANATIONS or getattr(threat.adversary, "surrogates", ()):
        return 0.0
    logits = trial.now.logits.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = GAINS[threat.gain](trial.clean)(Reading(logits, trial.now.attention, items=trial.now.items))
        if not value.requires_grad:
            return 0.0
        slope = torch.autograd.grad(value, logits)[0][: len(trial.clean.logits)]
    same = (trial.now.probs[: len(slope)].argmax(-1) == trial.clean.probs.argmax(-1)) & trial.eval_mask
    return float((slope[same].reshape(int(same.sum()), -1) == 0).all(1).float().mean()) if same.any() else 0.0


def narrow_columns(x: Any, adversary: Any) -> float:
    """Return the share of the columns of `x` whose large values lie far outside the box of injected features.

    >>> from fgai import NodeInjection
    >>> narrow_columns(torch.tensor([[1.0, 500.0], [0.0, -900.0]]), NodeInjection())
    0.5
    """
    box = getattr(adversary, "box", None)
    if box is None or getattr(adversary, "features", "box") != "box" or not isinstance(x, Tensor) or x.dim() != 2:
        return 0.0
    if x.layout != torch.strided or not x.is_floating_point() or not x.numel():
        return 0.0
    bound = NARROW * max(map(abs, box))
    low, high = x.aminmax(dim=0)
    reaching = x[:, torch.maximum(-low, high) > bound]  # usually no column: nothing else is copied or sorted
    large = reaching.abs().kthvalue(int(LARGE_VALUES * (len(x) - 1)) + 1, dim=0).values
    return float((large > bound).sum()) / x.size(1)


def _can_change(trial: Trial) -> bool:
    """Return whether a node can lose a member of its top k: it has more edges, or the attack adds some."""
    added = trial.graph.num_edges > (trial.reference or trial).graph.num_edges
    return added or bool((trial.difference.edges > TOP).any())


def _has_gradient(read: Callable[[dict[str, Tensor]], Reading], start: dict[str, Tensor], trial: Trial) -> bool:
    """Return whether random sums of the logits of the original items have a gradient in these tensors."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in start.items()}
    noise = torch.randn(trial.clean.logits.shape, generator=torch.Generator().manual_seed(0)).to(trial.clean.logits)
    with frozen_params(trial.read.model), torch.enable_grad():
        logits = read(leaves).logits[: len(noise)]
        slopes = torch.autograd.grad((noise * logits).sum(), [*leaves.values()], allow_unused=True)
    return any(slope is not None and bool((slope != 0).any()) for slope in slopes)
