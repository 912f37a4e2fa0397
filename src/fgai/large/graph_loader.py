"""Loader of batches of whole graphs from one PyG `Batch`, sharded over ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.errors import DataError
from fgai.graph import degree, require
from fgai.items import SPECIAL, graph_attributes, items_of
from fgai.large.loader import ShardedBatches


class GraphLoader:
    """Batches of some graphs of a `Batch`; under `torchrun` each rank loads its share of the batches.

    It indexes the tensors of the batch, so a batch of b graphs costs a few operations instead of b, as with PyG's
    `DataLoader`. Attributes that are no tensors are left out. Tensors with a row per graph go with their graphs.

    Args:
        graph: A batch of graphs, sorted by graph.
        batch: Graphs per batch.
        graphs: Mask of the graphs to load, [G]; by default all.
        shuffle: Whether to shuffle the graphs in each epoch.
        seed: Random seed of shuffling.

    >>> from fgai import datasets
    >>> data = datasets.load("ba-2motifs")
    >>> loader = GraphLoader(data, batch=64, graphs=data.train_mask)
    >>> part = next(iter(loader))
    >>> len(loader), part.num_graphs, len(part.y), bool(part.train_mask.all())
    (11, 64, 64, True)
    """

    def __init__(
        self, graph: Data, *, batch: int, graphs: Tensor | None = None, shuffle: bool = True, seed: int = 0
    ) -> None:
        self.graph, count = graph, items_of(graph).count
        if items_of(graph).kind != "graphs":
            raise DataError(
                f"batches of graphs are for labels of graphs, and this graph has {items_of(graph)}; give a Batch with "
                "a row of `y` and the masks for each graph, or use fgai.large.Loader for nodes"
            )
        self._of_graphs = graph_attributes(graph, count)
        chosen = torch.ones(count, dtype=torch.bool) if graphs is None else graphs.cpu()
        self._numbers = chosen.nonzero().flatten()
        self.shares = ShardedBatches(len(self._numbers), batch, shuffle, seed)
        of, edges = require(graph, "batch"), require(graph, "edge_index")
        self._nodes = degree(of, count)
        self._edges = degree(of[edges[1]], count)
        self._order = of[edges[1]].argsort(stable=True)  # the edges, graph by graph

    def __len__(self) -> int:
        """Return the number of batches of this rank."""
        return len(self.shares)

    def __iter__(self) -> Iterator[Data]:
        for chosen in self.shares:
            yield self._batch_of(self._numbers[chosen].to(self._nodes.device))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which with the seed determines the batches."""
        self.shares.epoch = epoch

    def _batch_of(self, graphs: Tensor) -> Data:
        """Return the batch of these graphs, in this order."""
        nodes, shift = _ranges(self._nodes, graphs)
        edges = self._order[_ranges(self._edges, graphs)[0]]
        part = Data()
        for name, value in self.graph.to_dict().items():
            if not isinstance(value, Tensor) or name in (*SPECIAL, "batch"):
                continue
            if name in self._of_graphs:
                part[name] = value.index_select(0, graphs)
            elif self.graph.is_node_attr(name):
                part[name] = value.index_select(0, nodes)
            else:
                part[name] = value.index_select(0, edges) if self.graph.is_edge_attr(name) else value
        ends, sizes = require(self.graph, "edge_index")[:, edges], self._nodes[graphs]
        part.batch = torch.arange(len(graphs), device=graphs.device).repeat_interleave(sizes)
        part.edge_index = ends - shift[require(self.graph, "batch")[ends[0]]]
        part.ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        part.num_graphs = len(graphs)
        return part


def _ranges(sizes: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the chosen groups of consecutive rows, and by how much the rows of each group move up.

    >>> _ranges(torch.tensor([2, 1, 3]), torch.tensor([2, 0]))
    (tensor([3, 4, 5, 0, 1]), tensor([-3,  0,  3]))
    """
    first, count = sizes.cumsum(0) - sizes, sizes[chosen]
    shift = torch.zeros_like(sizes).index_put((chosen,), first[chosen] - (count.cumsum(0) - count))
    rows = torch.arange(int(count.sum()), device=sizes.device) + shift[chosen].repeat_interleave(count)
    return rows, shift
