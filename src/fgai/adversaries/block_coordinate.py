"""The gradient attacks of PyG on links, PRBCD and GRBCD, for attention layers, which take no edge weights.

Both relax a link to a weight in [0, 1]. An attention layer gets log(weight), added to the scores of the edge: the
softmax then multiplies the edge by its weight. A weight of 1 has no effect, and a weight of 0 removes the edge. The
result is evaluated on the graph with these links added and removed, not with weights.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, OVERFLOW, Best, Gain, require_gradient
from fgai.adversaries.other_layers import evaluate_draws, sizes, uses_links_elsewhere
from fgai.adversaries.perturbation import AttackResult, Perturbation
from fgai.attention import Attention
from fgai.errors import NotFiniteError, SettingError
from fgai.graph import add_edges, locate, require
from fgai.items import refuse_graphs
from fgai.modes import frozen_params
from fgai.reading import Reader, Reading
from fgai.seeding import seeded
from fgai.settings import check_seed, check_whole

LEAST = 1e-9  # the weight of a removed edge; its logarithm is finite


@ADVERSARIES.register("prbcd")
@dataclass(frozen=True)
class PRBCD:
    """At most `flips` links added or dropped, by projected gradient ascent on random blocks of pairs.

    `PRBCDAttack` of PyG (Geisler et al. 2021): in each epoch the weights of a block of random pairs take a step of
    gradient ascent and are projected to the budget. Pairs of low weight are replaced by new random pairs. If the graph
    is not undirected, a flip is one directed edge. The search runs on the CPU, the model on its device.

    Layers without attention see the whole block, whatever the weights. In a model with such layers the search runs up
    to four times, with smaller and smaller blocks, ten random draws are evaluated as well, and the largest gain counts.

    Args:
        flips: Largest number of links that are added or dropped.
        epochs: Steps of the search.
        block: Random pairs per step; more than `flips`.
        seed: Seed of the random pairs.

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

    def __post_init__(self) -> None:
        check_whole(1, flips=self.flips, epochs=self.epochs)
        check_whole(self.flips + 1, block=self.block)
        check_seed(self.seed)

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """Return the reading with the largest gain; see `Adversary`."""
        refuse_graphs(graph, type(self).__name__, "attack with fgai.GraphInjection()", most=1)
        with torch.no_grad():
            clean = read(graph).detach()
        best, undirected = Best(read, graph, gain, clean), graph.is_undirected()
        edges, nodes = require(graph, "edge_index").cpu().unique(dim=1), int(graph.num_nodes or 0)
        pairs = nodes * (nodes - 1) // (2 if undirected else 1)
        if self.flips >= pairs:
            raise SettingError(f"{self}, but the graph has {pairs} pairs of nodes; give fewer flips")
        elsewhere = uses_links_elsewhere(read, graph, clean, self.seed)
        for block in sizes(self.block, self.flips) if elsewhere and pairs >= 4 * self.flips else [self.block]:
            search = replace(self, block=block)
            flipped = search._search(WeightedEdges(read, graph, gain), edges, nodes, undirected)
            added, dropped = flipped[:, locate(flipped, edges) < 0], edges[:, locate(edges, flipped) < 0]
            best.evaluate(Perturbation(added=added, dropped=dropped))
        if elsewhere:
            evaluate_draws(best, graph, self.flips, self.seed, undirected)
        return best.reading()

    def _search(self, weighted: WeightedEdges, edges: Tensor, nodes: int, undirected: bool) -> Tensor:
        """Return the edges after the attack; [2, E']."""
        attack, x = self._attack(weighted, undirected), torch.empty(nodes, 0)  # PyG needs its length and its device
        try:
            with seeded(self.seed), frozen_params(weighted.model):
                return attack.attack(x, edges, torch.empty(0), budget=self.flips)[0].to(edges)
        except RuntimeError as error:
            if "block was not successful" not in str(error):
                raise
            raise SettingError(f"{self}, but the graph has too few pairs of nodes; give fewer flips") from error

    def _attack(self, weighted: WeightedEdges, undirected: bool) -> Any:
        """Return the attack of PyG."""
        resampled = max(self.epochs * 3 // 4, 1)
        return _rbcd().PRBCDAttack(
            weighted, self.block, self.epochs, resampled, weighted.gain, is_undirected=undirected, log=False
        )


@ADVERSARIES.register("grbcd")
@dataclass(frozen=True)
class GRBCD(PRBCD):
    """At most `flips` links added or dropped: in each epoch those of a random block with the largest gradient.

    `GRBCDAttack` of PyG (Geisler et al. 2021), with the settings of `PRBCD`.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> change = GRBCD(flips=4, epochs=2, block=100)(read, data, gains.kl(read(data).detach())).perturbation
    >>> change.added.size(1) + change.dropped.size(1) <= 8
    True
    """

    def _attack(self, weighted: WeightedEdges, undirected: bool) -> Any:
        """Return the attack of PyG."""
        epochs = min(self.epochs, self.flips)
        return _rbcd().GRBCDAttack(weighted, self.block, epochs, weighted.gain, is_undirected=undirected, log=False)


class WeightedEdges:
    """Reads a model on a graph with edge weights: the callable `model(x, edge_index, edge_weight)` of PyG's attacks.

    >>> from torch_geometric.nn import GATConv
    >>> graph = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 2], [1, 1]]))
    >>> weighted = WeightedEdges(Reader(GATConv(3, 2).eval()), graph, lambda now: now.logits.sum())
    >>> now = weighted(graph.x, graph.edge_index, torch.tensor([1.0, 0.0])).detach()
    >>> float(now.explanation.weights_at(torch.tensor([[2], [1]]))) < 1e-6
    True
    """

    def __init__(self, read: Reader, graph: Data, gain: Gain) -> None:
        self._read, self._graph, self._gain = read, graph, gain

    @property
    def model(self) -> nn.Module:
        """The attacked model."""
        return self._read.model

    def eval(self) -> None:
        """Do nothing: PyG requests evaluation mode, but the reader controls the mode of the model."""

    def gain(self, now: Reading, labels: Tensor, at: Tensor | None) -> Tensor:
        """Return the gain; the signature is that of the losses of PyG."""
        value = self._gain(now)
        if torch.is_grad_enabled():
            require_gradient(value)
        if not bool(value.isfinite()):
            raise NotFiniteError(OVERFLOW)
        return value

    def __call__(self, x: Tensor | None, edge_index: Tensor, edge_weight: Tensor) -> Reading:
        """Read the model with these edge weights; edges of the graph that are missing in `edge_index` have weight 0."""
        edges = require(self._graph, "edge_index")
        edge_index, edge_weight = edge_index.to(edges), edge_weight.to(edges.device)
        new = edge_index[:, locate(edge_index, edges) < 0]
        augmented = add_edges(self._graph, new) if new.size(1) else self._graph
        with torch.no_grad():
            attention = self._read(augmented).attention
        scores = {site: self._score_delta(a, edge_index, edge_weight) for site, a in attention.items()}
        return self._read(augmented, score_delta=scores)

    def _score_delta(self, attention: Attention, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """Return log(weight) of each edge of a layer; self-loops that the layer adds have weight 1; [E, H]."""
        at = locate(attention.edge_index, edge_index)
        removed = (at < 0) & (locate(attention.edge_index, require(self._graph, "edge_index")) >= 0)
        weight = torch.where(at >= 0, edge_weight[at.clamp(min=0)], 1.0 - removed.to(edge_weight))
        return weight.clamp(min=LEAST).log().to(attention.weight.dtype)[:, None].expand_as(attention.weight)


def _rbcd() -> Any:
    """Import the attacks of PyG, without the warning that they are experimental."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch_geometric.contrib", UserWarning)
        from torch_geometric.contrib.nn.models import rbcd_attack
    return rbcd_attack
