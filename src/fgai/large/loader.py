"""Loaders of sampled and of full neighbourhoods: PyG's `NodeLoader` with our sampler, sharded over ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput

from fgai import distributed
from fgai.checks import one_graph
from fgai.devices import CPU, on_device
from fgai.errors import DataError, SettingError
from fgai.items import items_of, refuse_graphs
from fgai.large.permutation import Permutation
from fgai.large.sampler import CSC, NeighbourSampler
from fgai.large.store import DiskGraph

ALL = -1  # edges per hop


class ShardedBatches:
    """Batch sampler that assigns the batches of seed nodes to the ranks in turn.

    With `shuffle` each rank gets the same number of batches, and left-over batches are dropped for the epoch. Without
    it each seed node comes exactly once. No rank holds a list of the positions of all seed nodes.

    >>> list(ShardedBatches(5, batch=2, shuffle=False, seed=0))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, count: int, batch: int, shuffle: bool, seed: int) -> None:
        self.count, self.batch, self.shuffle, self.seed, self.epoch = count, batch, shuffle, seed, 0
        if batch < 1 or (shuffle and -(-count // batch) < distributed.world_size()):
            raise SettingError(
                f"{count} seed nodes in batches of {batch} do not give each of {distributed.world_size()} ranks a "
                "batch; give smaller batches, of at least one node"
            )

    def __len__(self) -> int:
        batches, ranks = -(-self.count // self.batch), distributed.world_size()
        return batches // ranks if self.shuffle else len(range(distributed.rank(), batches, ranks))

    def __iter__(self) -> Iterator[list[int]]:
        order = Permutation(self.count, self.seed * 1_000_003 + self.epoch)
        for number in range(len(self)):
            first = (number * distributed.world_size() + distributed.rank()) * self.batch
            positions = torch.arange(first, min(first + self.batch, self.count))
            yield (order(positions) if self.shuffle else positions).tolist()


class _AllNodes:
    """The seed nodes of a loader of all nodes, without a list of them: position i is node i."""

    def __getitem__(self, positions: Sequence[int] | Tensor) -> NodeSamplerInput:
        nodes = torch.as_tensor(positions, dtype=torch.long)
        return NodeSamplerInput(input_id=nodes, node=nodes)


class Loader(NodeLoader):
    """Loader of the sampled neighbourhoods of seed nodes, from a graph in memory or on disk.

    Each batch is a `Data` on the CPU whose first `batch_size` nodes are the seed nodes. `n_id` and `e_id` are the ids
    of its nodes and edges in the graph. Under `torchrun` each rank loads its share of the batches.

    Args:
        graph: A graph in memory or on disk.
        fanout: The largest number of incoming edges to sample per node, for each hop; -1 for all.
        batch: Seed nodes per batch.
        seed_nodes: Ids or a mask of the seed nodes; all nodes by default.
        shuffle: Whether to shuffle the seed nodes in each epoch.
        seed: Random seed of shuffling and sampling.
        workers: Processes that prepare batches ahead; 0 prepares them in this process.

    >>> from fgai import datasets
    >>> data = datasets.load("synthetic")
    >>> batch = next(iter(Loader(data, fanout=(5, 5), batch=32)))
    >>> batch.batch_size, bool((data.edge_index[:, batch.e_id] == batch.n_id[batch.edge_index]).all())
    (32, True)
    """

    def __init__(
        self,
        graph: Data | DiskGraph,
        fanout: Sequence[int] = (10, 10),
        *,
        batch: int = 1_024,
        seed_nodes: Tensor | None = None,
        shuffle: bool = True,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        if isinstance(graph, Data | HeteroData):
            refuse_graphs(graph, "A neighbour loader", "give torch_geometric.loader.DataLoader the graphs")
            graph = on_device(one_graph(graph), CPU)
            _refuse_pairs(graph)
        csc = csc_of(graph)
        if seed_nodes is None:
            nodes: Any = torch.zeros(1, dtype=torch.long).expand(csc.num_nodes)  # PyG reads its length only
        else:
            nodes = seed_nodes.cpu()
            nodes = nodes.nonzero().flatten() if nodes.dtype == torch.bool else nodes
            _check_seed_nodes(nodes, csc.num_nodes)
        self.shares = ShardedBatches(len(nodes), batch, shuffle, seed)
        self.graph = graph
        source: Any = (graph, graph) if isinstance(graph, DiskGraph) else _without_lists(graph)
        super().__init__(
            source,
            NeighbourSampler(csc, fanout, seed),
            nodes,
            transform=self._complete,
            batch_sampler=self.shares,
            num_workers=workers,
            persistent_workers=False,
        )
        if seed_nodes is None:
            everything: Any = _AllNodes()
            self.input_data = everything

    def _complete(self, batch: Data) -> Data:
        """Add the edge attributes of a graph on disk, and coalesce sparse features once, so that no layer has to."""
        if isinstance(self.graph, DiskGraph):
            for name in self.graph.edge_names:
                batch[name] = self.graph.edge_attribute(name)[batch.e_id]
        if isinstance(batch.x, Tensor) and batch.x.is_sparse:
            batch.x = batch.x.coalesce()
        return batch

    def batch_of(self, positions: Sequence[int] | Tensor) -> Data:
        """Return the batch of the seed nodes at these positions, whatever the share of this rank."""
        batch: Any = self(positions if isinstance(positions, Tensor) else torch.tensor(positions))
        return batch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which with the seed determines the batches and the sampled neighbours."""
        self.shares.epoch = epoch
        sampler: Any = self.node_sampler
        sampler.epoch = epoch


def _without_lists(graph: Data) -> Data:
    """Return the graph without lists per node, such as `names`: PyG's loaders sample tensors only."""
    lists = [name for name, value in graph.to_dict().items() if isinstance(value, list | tuple)]
    if not lists:
        return graph
    graph = copy.copy(graph)
    for name in lists:
        del graph[name]
    return graph


def _refuse_pairs(graph: Data) -> None:
    """Raise if the items of a graph are pairs of nodes: their ids are those of the whole graph."""
    if items_of(graph).kind == "pairs":
        raise DataError(
            "the graph has `edge_label_index`, and a batch of seed nodes renumbers its nodes, so its pairs would be "
            "about other nodes; give the whole graph to fit, audit and certify, or remove `edge_label_index`"
        )


def _check_seed_nodes(nodes: Tensor, num_nodes: int) -> None:
    """Raise unless the seed nodes are ids of existing nodes."""
    integer = nodes.dim() == 1 and nodes.dtype in (torch.int32, torch.int64)
    if not integer or (len(nodes) and not 0 <= int(nodes.min()) <= int(nodes.max()) < num_nodes):
        raise SettingError(
            f"seed_nodes is {nodes.dtype} {list(nodes.shape)}; give a mask, or a list of ids from 0 to {num_nodes - 1}"
        )


def csc_of(graph: Data | DiskGraph) -> CSC:
    """Return the edges of a graph grouped by target; those of a `DiskGraph` stay on disk."""
    return graph.columns if isinstance(graph, DiskGraph) else CSC.of(graph)


def full_neighbour_loader(
    graph: Data | DiskGraph, hops: int, *, batch: int = 256, seed_nodes: Tensor | None = None
) -> Loader:
    """Return a loader of full neighbourhoods: on the seed nodes, a model of `hops` layers outputs the exact logits.

    Args:
        graph: A graph in memory or on disk.
        hops: Hops of the neighbourhoods, one per layer of the model.
        batch: Seed nodes per batch.
        seed_nodes: Ids or a mask of the seed nodes; all nodes by default.

    Returns:
        A loader in which each seed node comes once.

    >>> from fgai import datasets
    >>> data = datasets.load("synthetic")
    >>> sum(len(batch.e_id) for batch in full_neighbour_loader(data, hops=1)) == data.num_edges
    True
    """
    return Loader(graph, [ALL] * hops, batch=batch, seed_nodes=seed_nodes, shuffle=False)
