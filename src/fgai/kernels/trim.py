"""Edges that a layer can skip in a sampled batch, since what they change no seed is told of.

A loader samples hop by hop, and nodes are numbered in the order in which hops reach them. With L layers, the output of
layer l matters only at nodes within L - l hops of the seeds; the rows of other nodes stay in place, and are void. This
is PyG's `trim_to_layer` for the edges of any model, which need not be written for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

Near = tuple[int, int]  # targets below the first number matter, and those from the second on


def trim_edges(edge_index: Tensor, near: Near) -> Tensor:
    """The edges to targets that matter.

    >>> import torch
    >>> trim_edges(torch.tensor([[1, 2, 0], [0, 1, 3]]), near=(1, 3))
    tensor([[1, 0],
            [0, 3]])
    """
    target = edge_index[1]
    return edge_index[:, (target < near[0]) | (target >= near[1])]


class Trim:
    """How many nodes each hop of the batch has reached that is being read; none of a whole graph.

    >>> trim = Trim()
    >>> with trim.batch([4, 20, 90]):
    ...     trim.near(layers_left=2)
    (24, 114)
    """

    def __init__(self) -> None:
        self._counts: Sequence[int] | None = None

    @contextmanager
    def batch(self, num_sampled_nodes: Sequence[int] | None) -> Iterator[None]:
        """For the length of a block the model is called on a batch with these counts."""
        before, self._counts = self._counts, num_sampled_nodes
        try:
            yield
        finally:
            self._counts = before

    def near(self, layers_left: int) -> Near | None:
        """The targets that matter to a layer that is the first of so many that are left; None if all do.

        Injected nodes, which come after those of the last hop, matter.
        """
        if self._counts is None or layers_left == 0:
            return None
        return sum(self._counts[:layers_left]), sum(self._counts)
