"""The rules of the bench for methods, models and attacks that join it. Each check gives a sentence.

They find mistakes and careless cheating. They do not find malice: a submission is code that runs in this process, and
somebody must read it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adversaries import GAINS, AttackEnsemble, Threat
from fgai.calling import Call
from fgai.errors import BudgetError
from fgai.graph import require
from fgai.model_checks import distance
from fgai.modes import frozen_params
from fgai.reading import Reader, Reading, open_reader
from fgai.seeding import seeded

WHITE_BOX = AttackEnsemble(
    nodes=20, edges=(20,), surrogates=("cross-entropy", "margin"), schedules=((20, 0.1), (10, 0.4))
)
TOLERANCE = 0.02  # share of predictions that another attack may change beyond the gradient attack: 1 in 50
TRIES = 20  # random feature matrices of the black-box check
DIRECTIONS, REACH = 8, 0.02  # random directions of the slope check, and how far it looks, in half-widths of the box
SMALLEST = 1e-6  # mean change of the cross-entropy that is more than rounding
TOO_FLAT = 0.1  # a gradient that predicts less than this share of the changes is hidden

Fit = Callable[[Data], nn.Module]


@dataclass(frozen=True)
class Check:
    """The result of one rule.

    Attributes:
        rule: Its name.
        passed: Whether the submission keeps it; None if it cannot be checked.
        sentence: What was found.
    """

    rule: str
    passed: bool | None
    sentence: str

    def __str__(self) -> str:
        word = "not checked" if self.passed is None else "passed" if self.passed else "REFUSED"
        return f"{word}: {self.rule}: {self.sentence}"


def deterministic(read: Reader, data: Data) -> Check:
    """The same input gives the same bits, whatever the state of the random generators.

    Args:
        read: Reader of the model, in evaluation mode.
        data: The graph.

    Returns:
        The result.
    """
    readings = []
    for seed in (0, 1):
        with seeded(seed), torch.no_grad():
            readings.append(read(data))
    moved = distance(*readings, exact=True)
    if moved is None:
        return Check("deterministic", True, "two passes give the same bits.")
    return Check(
        "deterministic",
        False,
        f"two passes on one graph differ by {moved:.2g}: the forward pass is random, or keeps a state. Make it "
        "deterministic in evaluation mode.",
    )


def visible_gradients(read: Reader, data: Data, vanilla: Reader, vanilla_data: Data) -> Check:
    """Gradients show where the model can be attacked.

    Two checks. The gradient must predict what small changes of injected features do. And an attack that follows the
    gradients must not change fewer predictions than one made against a vanilla model, or than random features, by more
    than `TOLERANCE`. All attacks have the same links and the same box.

    Args:
        read: Reader of the model, in evaluation mode.
        data: The graph, with all inputs of the model.
        vanilla: Reader of a vanilla model of the same graph.
        vanilla_data: The graph, with all inputs of the vanilla model.

    Returns:
        The result.
    """
    predicted, real = _slopes(read, data)
    if real > SMALLEST and predicted < TOO_FLAT * real:
        return Check(
            "visible gradients",
            False,
            f"small changes of injected features change the loss by {real:.2g}, and its gradient predicts "
            f"{predicted:.2g}: gradients are hidden. Let them pass through the whole model.",
        )
    own = _flips(read, data, WHITE_BOX)
    others = {"an attack made against a vanilla model": _transferred(read, data, vanilla, vanilla_data)}
    others["the best of random features"] = _random(read, data)
    worse = {what: share for what, share in others.items() if share > own + TOLERANCE}
    figures = f"the gradient attack changes {own:.1%} of the predictions, " + ", ".join(
        f"{what} {share:.1%}" for what, share in others.items()
    )
    if not worse:
        return Check("visible gradients", True, f"{figures}.")
    return Check(
        "visible gradients",
        False,
        f"{figures}. A gradient attack is weaker than {' and '.join(worse)} by more than {TOLERANCE:.0%}: gradients "
        "are hidden, or misleading.",
    )


def blind_to_test_labels(model: nn.Module, fit: Fit, data: Data, call: Call | None, seed: int) -> Check:
    """Training gives the same model if the labels of the test items are others.

    Args:
        model: The model that `fit` made of `data`.
        fit: Trains a model on a graph.
        data: The graph.
        call: How to call the model, if not by its signature.
        seed: Seed of the global random generators during training.

    Returns:
        The result.
    """
    rule, hidden = "no peeking at test labels", _with_other_test_labels(data)
    if hidden is None:
        return Check(rule, None, "the graph has no labels or no test items.")

    def trained(graph: Data) -> nn.Module:
        with seeded(seed):
            return fit(graph)

    def differ(one: nn.Module, other: nn.Module) -> bool:
        if not _same_state(one, other):
            return True
        return distance(_reading(one, data, call), _reading(other, data, call), exact=True) is not None

    blind, passed = trained(hidden), Check(rule, True, "training with other test labels gives the same model.")
    if not differ(model, blind):
        return passed
    first = trained(data)  # the given model was perhaps trained from another state of the generators
    if not differ(first, blind):
        return passed
    if differ(first, trained(data)):
        return Check(
            "deterministic",
            False,
            "two runs of `fit` with one seed give different models, so nobody can verify a row. Take all random "
            "numbers from generators seeded with `seed`.",
        )
    return Check(
        rule, False, "training with other test labels gives another model: `fit` uses `y` of the test items. Use only "
        "`train_mask`, and `val_mask` for the choice of the epoch."
    )  # fmt: skip


def fair_attack(threat: Threat, read: Reader, data: Data, seed: int) -> list[Check]:
    """An attack keeps its budget, gives the same perturbation for one seed, and changes neither model nor graph.

    Args:
        threat: The threat model; its adversary is a `WithinBudget`.
        read: Reader of the attacked model.
        data: The graph.
        seed: Seed of the attack.

    Returns:
        One result per rule.
    """
    before = copy.deepcopy(read.model.state_dict()), copy.deepcopy(data)
    seeded_threat, changes = replace(threat, adversary=replace(threat.adversary, seed=seed)), []  # pyright: ignore
    try:
        for state in (0, 1):
            with seeded(state):
                changes.append(vars(seeded_threat(read, data).perturbation))
    except BudgetError as error:
        return [Check("one budget for all", False, f"{error}.")]
    first, second = changes
    same = all(_equal(first[name], second[name]) for name in first)
    intact = _equal(before[0], read.model.state_dict()) and _equal(before[1].to_dict(), data.to_dict())
    return [
        Check("one budget for all", True, "nodes, links and features are those that the threat model allows."),
        Check("deterministic", same, "one seed gives one perturbation." if same else
              "two runs with one seed give different perturbations. Take all random numbers from a generator seeded "
              "with `seed`."),
        Check("leaves no trace", intact, "the attack changes neither the model nor the graph." if intact else
              "the attack changes the model or the graph. Return a perturbation, and leave both as they are."),
    ]  # fmt: skip


def _slopes(read: Reader, data: Data) -> tuple[float, float]:
    """The mean change of the cross-entropy in random directions: predicted by the gradient, and real."""
    site, generator = next(WHITE_BOX.members()).place(data), torch.Generator().manual_seed(0)
    low, half = site.box.low, site.box.half
    x = low + 2 * half * torch.rand(site.nodes, low.numel(), generator=generator).to(low)
    with torch.no_grad():
        gain = GAINS["cross-entropy"](read(data).detach())
    slope = torch.zeros_like(x)
    with frozen_params(read.model):
        value = gain(read(site.graph(x.requires_grad_())))
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value, x, allow_unused=True, materialize_grads=True)
    x, changes = x.detach(), []
    for _ in range(DIRECTIONS):
        step = REACH * half * (2 * torch.randint(2, x.shape, generator=generator).to(x) - 1)
        with torch.no_grad():
            up, down = (float(gain(read(site.graph(x + side * step)))) for side in (1, -1))
        changes.append((abs(float((slope * 2 * step).sum())), abs(up - down)))
    predicted, real = zip(*changes, strict=True)
    return mean(predicted), mean(real)


def _flips(read: Reader, data: Data, attack: Any) -> float:
    """The share of predictions that an attack changes."""
    with torch.no_grad():
        clean = read(data).detach()
    return float(GAINS["flips"](clean)(attack(read, data, GAINS["flips"](clean)).detach()))


def _transferred(read: Reader, data: Data, vanilla: Reader, vanilla_data: Data) -> float:
    """The share of predictions that the attack on the vanilla model changes."""
    with torch.no_grad():
        gain, other = (GAINS["flips"](one(graph).detach()) for one, graph in ((read, data), (vanilla, vanilla_data)))
    change = WHITE_BOX(vanilla, vanilla_data, other).perturbation
    with torch.no_grad():
        return float(gain(change.read(read, data)))


def _random(read: Reader, data: Data) -> float:
    """The largest share of predictions that random features at the ends of the box change."""
    attack, generator, shares = next(WHITE_BOX.members()), torch.Generator().manual_seed(0), []
    site = attack.place(data)
    with torch.no_grad():
        gain = GAINS["flips"](read(data).detach())
        for _ in range(TRIES):
            corner = torch.randint(2, (site.nodes, site.box.low.numel()), generator=generator).to(site.box.low)
            shares.append(float(gain(site.read(read, site.box.low + 2 * site.box.half * corner))))
    return max(shares)


def _with_other_test_labels(data: Data) -> Data | None:
    """The graph with another class for each test item; None if there is no such item."""
    y, mask = data.get("y"), data.get("test_mask")
    if not isinstance(y, Tensor) or not isinstance(mask, Tensor) or not bool(mask.any()):
        return None
    hidden, classes = copy.copy(data), int(require(data, "y").max()) + 1
    hidden.y = torch.where(mask, (y + 1) % max(classes, 2), y)
    return hidden


def _reading(model: nn.Module, data: Data, call: Call | None) -> Reading:
    with open_reader(model, call) as read, torch.no_grad():
        return read(data).detach()


def _same_state(one: nn.Module, other: nn.Module) -> bool:
    return _equal(one.state_dict(), other.state_dict())


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, tensors by all their bits."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        one, other = (part.coalesce().to_dense() if part.is_sparse else part for part in (one, other))
        return torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return type(one) is type(other) and bool(one == other)
