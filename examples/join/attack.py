"""An attack that joins the bench: injected nodes that all copy the rows of one class.

fgai bench submit attack.py --as one-class --threat injection-20x20 --plan plan.toml
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch_geometric.data import Data

from fgai.adversaries import ADVERSARIES, AttackResult, Gain, Perturbation
from fgai.adversaries.base import Best
from fgai.adversaries.perturbation import undirected
from fgai.graph import require
from fgai.reading import Reader


@ADVERSARIES.register("one-class")
@dataclass(frozen=True)
class OneClass:
    """Injected nodes with the mean features of a predicted class, scaled to the box; the worst class counts."""

    nodes: int = 20
    edges: int = 20
    seed: int = 0

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found; it follows no gradient."""
        best, x = Best(read, graph, gain), require(graph, "x")
        x = x.to_dense() if x.is_sparse else x
        generator = torch.Generator().manual_seed(self.seed)
        targets = torch.stack([torch.randperm(len(x), generator=generator)[: self.edges] for _ in range(self.nodes)])
        new = torch.arange(len(x), len(x) + self.nodes).repeat_interleave(self.edges)
        links = undirected(torch.stack([new, targets.flatten()]))
        with torch.no_grad():
            classes = read(graph).probs.argmax(-1)
        for label in classes.unique():
            lift = x[classes == label].mean(0) - x.mean(0)
            best.evaluate(Perturbation(lift.sign().expand(self.nodes, -1), links))
        return best.reading()
