"""A method that joins the bench: training with dropped edges (DropEdge, Rong et al. 2020).

fgai bench submit method.py --as drop-edge --plan plan.toml
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch_geometric.utils import dropout_edge

from fgai.graph import delete_edges, require
from fgai.methods import METHODS, Fit, Graphs, Method
from fgai.reading import Call, TrainingReader
from fgai.settings import check_numbers
from fgai.training.data import Batch, source
from fgai.training.loop import Schedule, Terms, train


@METHODS.register("drop-edge")
@dataclass(frozen=True)
class DropEdge(Method):
    """Cross-entropy on the graph without a random share of its edges, drawn anew in each epoch."""

    share: float = 0.3
    epochs: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(0, share=self.share)

    @property
    def schedule(self) -> Schedule:
        """How long and how fast to train."""
        return Schedule(epochs=self.epochs, seed=self.seed)

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`. Only the labels of `train_mask` are used, and `val_mask` to choose the epoch."""

        def terms(read: TrainingReader, batch: Batch) -> Terms:
            nodes, labels = batch.seed_nodes_in("train_mask"), require(batch.graph, "y")
            _, kept = dropout_edge(require(batch.graph, "edge_index"), self.share)
            logits = read.logits(delete_edges(batch.graph, ~kept))
            return {"label": nn.functional.cross_entropy(logits[nodes], labels[nodes])}

        return train(self, model, source(data, "y", "train_mask"), terms, call=call, checkpoint=checkpoint)
