"""PyG's gradient attacks on links, PRBCD and GRBCD, against models whose layers take no edge weight.

Both relax a link to a weight in [0, 1]. An attention layer gets that weight as log(weight) on the scores of the edge:
the softmax then multiplies the edge's share by the weight, a weight of one changes nothing and one of zero takes the
edge away. What is found is judged on the graph with these links really added and deleted, never by weights.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Best, Gain
from fgai.adversaries.perturbation import AttackResult, Perturbation
from fgai.attention import Attention
from fgai.errors import NotDifferentiableError, SettingError
from fgai.graph import add_edges, locate, require
from fgai.reading import Reader, Reading, frozen_params
from fgai.seeding import seeded

LEAST = 1e-9  # the weight of a link that is gone; its logarithm is finite


@ADVERSARIES.register("prbcd")
@dataclass(frozen=True)
class PRBCD:
    """At most `flips` links added or dropped, by projected gradient on random blocks of pairs (Geisler et al. 2021).

    PyG's `PRBCDAttack`: in each of `epochs` rounds the weights of `block` random pairs move up the gain and are
    projected to the budget; pairs of low weight are drawn again. In a graph that is not undirected a flip is one edge.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> change = PRBCD(flips=4, epochs=2, block=100)(read, data, gains.kl(read(data).detach())).perturbation
    >>> change.added.size(1) + change.dropped.size(1) <= 8
    True
    """

    flips: int = 200
    epochs: int = 30
    block: int = 20_000
    seed: int = 0

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found."""
        if not 0 < self.flips < self.block or self.epochs < 1:
            raise SettingError(f"{self}; give at least one flip, more pairs in a block than flips, and some epochs")
        best, relaxed = Best(read, graph, gain), WeightedEdges(read, graph, gain)
        edges = require(graph, "edge_index").unique(dim=1)
        attack = self._attack(relaxed, relaxed.gain, graph.is_undirected())
        try:
            with seeded(self.seed), frozen_params(read.model):
                flipped, _ = attack.attack(require(graph, "x"), edges, torch.empty(0), budget=self.flips)
        except RuntimeError as error:
            if "block was not successful" not in str(error):
                raise
            raise SettingError(f"{self}, and the graph has too few pairs of nodes for that; ask for fewer") from error
        now = flipped.to(edges)
        best.try_on(Perturbation(added=now[:, locate(now, edges) < 0], dropped=edges[:, locate(edges, now) < 0]))
        return best.reading()

    def _attack(self, model: Any, loss: Any, undirected: bool) -> Any:
        return _rbcd().PRBCDAttack(
            model, self.block, self.epochs, max(self.epochs * 3 // 4, 1), loss, is_undirected=undirected, log=False
        )


@ADVERSARIES.register("grbcd")
@dataclass(frozen=True)
class GRBCD(PRBCD):
    """At most `flips` links added or dropped, greedily: in each round those of a random block with the steepest gain.

    PyG's `GRBCDAttack` (Geisler et al. 2021).

    >>> GRBCD(flips=4, epochs=2).flips
    4
    """

    def _attack(self, model: Any, loss: Any, undirected: bool) -> Any:
        epochs = min(self.epochs, self.flips)
        return _rbcd().GRBCDAttack(model, self.block, epochs, loss, is_undirected=undirected, log=False)


class WeightedEdges:
    """Reads a graph whose edges have weights, as `model(x, edge_index, edge_weight)`: what PyG's attacks call.

    >>> from torch_geometric.nn import GATConv
    >>> graph = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 2], [1, 1]]))
    >>> call = WeightedEdges(Reader(GATConv(3, 2).eval()), graph, lambda now: now.logits.sum())
    >>> now = call(graph.x, graph.edge_index, torch.tensor([1.0, 0.0])).detach()
    >>> float(now.explanation.weights_at(torch.tensor([[2], [1]]))) < 1e-6
    True
    """

    def __init__(self, read: Reader, graph: Data, gain: Gain) -> None:
        self._read, self._graph, self._gain = read, graph, gain

    def eval(self) -> None:
        """PyG asks for evaluation mode; the mode of a model is its reader's matter."""

    def gain(self, now: Reading, labels: Tensor, at: Tensor | None) -> Tensor:
        """The gain in the form of PyG's losses."""
        value = self._gain(now)
        if torch.is_grad_enabled() and not value.requires_grad:
            raise NotDifferentiableError(
                "this gain has no gradient to climb, it can only judge; use it with fgai.Strongest or WorstOf, which "
                "climb other gains, or ask for another gain (cross-entropy, kl, margin, ...)"
            )
        return value

    def __call__(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Reading:
        """What the model says where edges have these weights; old edges that are not named have none."""
        edges = require(self._graph, "edge_index")
        new = edge_index[:, locate(edge_index, edges) < 0]
        wide = add_edges(self._graph, new) if new.size(1) else self._graph
        with torch.no_grad():
            sites = self._read(wide).attention
        scores = {site: self._score(attention, edge_index, edge_weight) for site, attention in sites.items()}
        return self._read(wide, score_delta=scores)

    def _score(self, attention: Attention, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """The logarithm of the weight of each edge that a layer attends over; its own self-loops keep one; [E, H]."""
        at = locate(attention.edge_index, edge_index)
        gone = (at < 0) & (locate(attention.edge_index, require(self._graph, "edge_index")) >= 0)
        weight = torch.where(at >= 0, edge_weight[at.clamp(min=0)], 1.0 - gone.to(edge_weight))
        return weight.clamp(min=LEAST).log()[:, None].expand_as(attention.weight)


def _rbcd() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch_geometric.contrib", UserWarning)  # PyG calls it experimental
        from torch_geometric.contrib.nn.models import rbcd_attack
    return rbcd_attack
