"""Skips edges of a sampled batch that do not affect the output of the seed nodes.

A loader samples hop by hop and numbers nodes in the order in which hops reach them. With L layers, the output of layer
l is needed only at nodes within L - l hops of the seed nodes. This is PyG's `trim_to_layer` for the edges of any model,
without changes to the model. Rows are not trimmed: those of other nodes remain, without meaning. A model may add
the input of a layer to its output, attention is looked up by node ids, and injected nodes have the last ids.
`docs/speed.md` has the time that trimmed rows would save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

Near = tuple[int, int]  # (n, m): targets below n are needed, and those from m on


def trim_edges(edge_index: Tensor, near: Near) -> Tensor:
    """Return the edges into needed targets.

    >>> import torch
    >>> trim_edges(torch.tensor([[1, 2, 0], [0, 1, 3]]), near=(1, 3))
    tensor([[1, 0],
            [0, 3]])
    """
    target = edge_index[1]
    return edge_index[:, (target < near[0]) | (target >= near[1])]


class Trim:
    """Holds the number of nodes per hop of the current batch, or None for a full graph.

    >>> trim = Trim()
    >>> with trim.batch([4, 20, 90]):
    ...     trim.near(layers_left=2)
    (24, 114)
    """

    def __init__(self) -> None:
        self._counts: Sequence[int] | None = None

    @contextmanager
    def batch(self, num_sampled_nodes: Sequence[int] | None) -> Iterator[None]:
        """Set the counts of the batch on which the model is called inside a `with` block."""
        before, self._counts = self._counts, num_sampled_nodes
        try:
            yield
        finally:
            self._counts = before

    def is_exact(self, logits: Callable[[], Tensor], num_sampled_nodes: Sequence[int]) -> bool:
        """Return whether a model has the same logits of the seed nodes with and without skipped edges.

        Args:
            logits: Calls the model on the batch.
            num_sampled_nodes: The counts of the batch.
        """
        seeds = num_sampled_nodes[0]
        full = logits()[:seeds]
        with self.batch(num_sampled_nodes):
            trimmed = logits()[:seeds]
        return bool(((full - trimmed).abs() <= 1e-4 * full.abs().max()).all())

    def near(self, layers_left: int) -> Near | None:
        """Return the needed targets of a layer, or None if all are needed.

        Injected nodes, which come after the nodes of the last hop, are needed.

        Args:
            layers_left: The number of layers from this one to the last; 0 if unknown.
        """
        if self._counts is None or layers_left == 0:
            return None
        return sum(self._counts[:layers_left]), sum(self._counts)
