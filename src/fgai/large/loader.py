"""Batches of a graph for training and for exact reading: PyG's `NodeLoader` with our sampler, shared among ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

from fgai import distributed as ranks
from fgai.checks import one_graph
from fgai.devices import CPU, on_device
from fgai.errors import SettingError
from fgai.large.sampler import CSC, NeighbourSampler
from fgai.large.store import DiskGraph

ALL = -1  # edges of a hop


class ShardedBatches:
    """Which seeds come together, epoch by epoch: shuffled batches are dealt out to the ranks one by one.

    Shuffled, every rank gets equally many, and what is left over waits for another epoch; if not, each seed comes once.

    >>> list(ShardedBatches(5, batch=2, shuffle=False, seed=0))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, count: int, batch: int, shuffle: bool, seed: int) -> None:
        self.count, self.batch, self.shuffle, self.seed, self.epoch = count, batch, shuffle, seed, 0
        if batch < 1 or (shuffle and -(-count // batch) < ranks.world_size()):
            raise SettingError(
                f"{count} seed nodes in batches of {batch} for {ranks.world_size()} ranks; give smaller batches, "
                "so that each rank has one"
            )

    def __len__(self) -> int:
        batches, world = -(-self.count // self.batch), ranks.world_size()
        return batches // world if self.shuffle else len(range(ranks.rank(), batches, world))

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        order = torch.randperm(self.count, generator=generator) if self.shuffle else torch.arange(self.count)
        for number in range(len(self)):
            first = (number * ranks.world_size() + ranks.rank()) * self.batch
            yield order[first : first + self.batch].tolist()


class Loader(NodeLoader):
    """Batches around `seeds` (ids or a mask; all nodes by default) of a graph, in memory or on disk.

    `fanout` says how many edges a node keeps at each hop. Each batch is a `Data` whose first `batch_size` nodes are the
    seeds, with the ids of its nodes (`n_id`) and edges (`e_id`). Batches come on the CPU; what reads them moves them
    to its model. Under `torchrun` each rank has its share.

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
        graph = on_device(one_graph(graph), CPU) if isinstance(graph, Data) else graph
        csc = columns_of(graph)
        nodes = torch.arange(csc.num_nodes) if seed_nodes is None else seed_nodes.cpu()
        nodes = nodes.nonzero().flatten() if nodes.dtype == torch.bool else nodes
        _check_seed_nodes(nodes, csc.num_nodes)
        self.shares = ShardedBatches(len(nodes), batch, shuffle, seed)
        self.graph = graph
        source: Any = (graph, graph) if isinstance(graph, DiskGraph) else graph
        super().__init__(
            source,
            NeighbourSampler(csc, fanout, seed),
            nodes,
            transform=_tidy,
            batch_sampler=self.shares,
            num_workers=workers,
            persistent_workers=False,
        )

    def set_epoch(self, epoch: int) -> None:
        """Other batches and other neighbours for another epoch, the same for the same one."""
        self.shares.epoch = epoch
        sampler: Any = self.node_sampler
        sampler.epoch = epoch


def _check_seed_nodes(nodes: Tensor, count: int) -> None:
    whole = nodes.dim() == 1 and nodes.dtype in (torch.int32, torch.int64)
    if not whole or (len(nodes) and not 0 <= int(nodes.min()) <= int(nodes.max()) < count):
        raise SettingError(
            f"seed_nodes is {nodes.dtype} {list(nodes.shape)}; give a mask, or a list of ids from 0 to {count - 1}"
        )


def _tidy(batch: Data) -> Data:
    """Sparse features lie in order once and for all, not each time that a layer multiplies them."""
    if isinstance(batch.x, Tensor) and batch.x.is_sparse:
        batch.x = batch.x.coalesce()
    return batch


def columns_of(graph: Data | DiskGraph) -> CSC:
    """The edges of a graph, grouped by target; those on disk stay there."""
    return graph.columns if isinstance(graph, DiskGraph) else CSC.of(graph)


def full_neighbour_loader(
    graph: Data | DiskGraph, hops: int, *, batch: int = 256, seed_nodes: Tensor | None = None
) -> Loader:
    """Batches in which the seeds have their whole neighbourhood of `hops` hops.

    A model of as many layers says of the seeds what it says in the whole graph.

    >>> from fgai import datasets
    >>> data = datasets.load("synthetic")
    >>> sum(len(batch.e_id) for batch in full_neighbour_loader(data, hops=1)) == data.num_edges
    True
    """
    return Loader(graph, [ALL] * hops, batch=batch, seed_nodes=seed_nodes, shuffle=False)
