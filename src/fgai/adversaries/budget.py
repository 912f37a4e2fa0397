"""Budgets of threat models, and an adversary whose result is checked against one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import Adversary, Gain
from fgai.adversaries.features import FEATURES
from fgai.adversaries.perturbation import AttackResult, Perturbation
from fgai.adversaries.threats import THREATS
from fgai.errors import BudgetError, DataError, SettingError
from fgai.graph import edge_keys, require
from fgai.items import has_graphs, num_graphs, refuse_typed
from fgai.reading import Reader

ROUNDING = 1e-5  # of a float32 at the border of a feature set


@dataclass(frozen=True)
class Budget:
    """What an attacker who injects nodes may do.

    Args:
        nodes: Injected nodes.
        links: Links of each injected node; each has both directions.
        features: Set of the injected features, a name in `FEATURES`.
        box: Range of the injected features; None takes the range of each feature from the data.
    """

    nodes: int
    links: int
    features: str = "box"
    box: tuple[float, float] | None = (-1.0, 1.0)

    def check(self, perturbation: Perturbation, graph: Data) -> None:
        """Raise unless a perturbation of a graph stays inside the budget.

        Args:
            perturbation: The change.
            graph: The clean graph.

        Raises:
            BudgetError: If it injects too many nodes or links, leaves the feature set, or changes anything else.
            DataError: If it is a typed graph or a batch of several graphs.

        >>> graph = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0], [1]]))
        >>> pairs = torch.tensor([[3, 3, 0, 1], [0, 1, 3, 3]])
        >>> Budget(nodes=1, links=2).check(Perturbation(torch.ones(1, 1), pairs), graph)
        >>> Budget(nodes=1, links=1).check(Perturbation(torch.ones(1, 1), pairs), graph)
        Traceback (most recent call last):
        fgai.errors.BudgetError: an injected node has 2 links, and the budget is 1
        """
        what, remedy = "A budget of injected nodes and links", "check the perturbation of each graph alone"
        refuse_typed(graph, what)
        if has_graphs(graph) and num_graphs(graph) > 1:
            raise DataError(f"{what} is for one graph, and this is a batch of {num_graphs(graph)} graphs; {remedy}")
        size, x = int(graph.num_nodes or 0), perturbation.x
        parts = ("dropped", "x_delta", "weight_delta", "score_delta")
        changed = [name for name in parts if _size(getattr(perturbation, name))]
        if changed:
            raise BudgetError(f"the attack changes {', '.join(changed)}, and the budget has only injected nodes")
        injected = 0 if x is None else len(x)
        if injected > self.nodes:
            raise BudgetError(f"the attack injects {injected} nodes, and the budget is {self.nodes}")
        self._check_links(perturbation.added.cpu(), size, size + injected)
        if x is not None and len(x):
            self._check_features(x.detach().to(require(graph, "x").device), perturbation.added.cpu(), graph)

    def _check_links(self, added: Tensor, size: int, end: int) -> None:
        if not added.numel():
            return
        low, high = int(added.min()), int(added.max())
        if low < 0 or high >= end:
            raise BudgetError(f"the attack links the nodes {low} to {high}, and there are {end} nodes")
        if bool((added < size).all(0).any()):
            raise BudgetError("the attack links two nodes of the graph; only injected nodes may have new links")
        keys, back = (edge_keys(ends, end).sort().values for ends in (added, added.flip(0)))
        if not torch.equal(keys, back) or bool((keys.diff() == 0).any()):
            raise BudgetError("the attack adds a link twice, or in one direction only; each link has both, once")
        most = int(torch.bincount(added[0], minlength=end)[size:].max())
        if most > self.links:
            raise BudgetError(f"an injected node has {most} links, and the budget is {self.links}")

    def _check_features(self, x: Tensor, added: Tensor, graph: Data) -> None:
        size = int(graph.num_nodes or 0)
        new = torch.arange(size, size + len(x)).expand(2, -1)  # an injected node may have no link
        allowed = FEATURES[self.features](graph, self.box).linked(
            graph, torch.cat([added[:, added[0] >= size], new], 1)
        )
        distance = float((x - allowed.rows(allowed.clamp(x))).abs().max()) if x.numel() else 0.0
        if not distance <= ROUNDING * max(1.0, float(allowed.half.max())):
            raise BudgetError(
                f"injected features lie {distance:.3g} outside the feature set `{self.features}` of the budget"
            )


def budget_of(name: str) -> Budget:
    """Return the budget of a threat model that injects nodes.

    Args:
        name: A name in `THREATS`.

    Returns:
        The most that its adversary may do.

    Raises:
        SettingError: If its adversary does something else than inject nodes into the graph.

    >>> budget_of("strongest")
    Budget(nodes=20, links=40, features='box', box=(-1.0, 1.0))
    """
    attack: Any = THREATS[name].adversary
    if isinstance(attack, WithinBudget):
        return budget_of(attack.budget)
    if not has_budget(name):
        known = ", ".join(filter(has_budget, THREATS))
        raise SettingError(f"{name} has no budget of injected nodes and links; choose one of {known}")
    links = max(attack.edges) if isinstance(attack.edges, tuple) else attack.edges
    return Budget(attack.nodes, links, getattr(attack, "features", "box"), attack.box)


def has_budget(name: str) -> bool:
    """Return whether a threat model injects nodes, so that `budget_of` knows its budget."""
    attack: Any = THREATS[name].adversary
    return isinstance(attack, WithinBudget) or (hasattr(attack, "nodes") and hasattr(attack, "edges"))


@dataclass(frozen=True)
class WithinBudget:
    """An adversary whose result is checked: the budget of a threat model, and the reading of the perturbed graph.

    Only the perturbation of the adversary counts. The model is read again, on the graph that it gives.

    Args:
        attack: The adversary.
        budget: The name of the threat model whose budget it must keep.
        seed: Replaces the seed of the adversary.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import NodeInjection, gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> WithinBudget(NodeInjection(30, 2, steps=0), "strongest")(read, data, gains.kl(read(data).detach()))
    Traceback (most recent call last):
    fgai.errors.BudgetError: the attack injects 30 nodes, and the budget is 20
    """

    attack: Adversary
    budget: str
    seed: int = 0

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """Return the reading of the perturbed graph; see `Adversary`."""
        seeded: Any = replace(self.attack, seed=self.seed)
        result = seeded(read, graph, gain)
        budget_of(self.budget).check(result.perturbation, graph)
        return replace(result.perturbation.read(read, graph), found_by=result.found_by)


def _size(part: Any) -> int:
    """The number of values in a part of a perturbation."""
    if part is None:
        return 0
    return sum(map(_size, part.values())) if isinstance(part, dict) else int(part.numel())
