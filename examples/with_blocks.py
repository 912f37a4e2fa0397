"""FGAI from a loader that yields DGL's blocks, as GraphStorm's and DistDGL's do.

python examples/with_blocks.py

`StandIn` is a stand-in for such a loader: it samples a graph in memory, and has the same interface.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

import fgai
from fgai import backbones
from fgai.graph import require
from fgai.large.sampler import CSC, sample_edges


def batch_of(input_nodes: Tensor, seeds: Tensor, blocks: Sequence[Any], x: Tensor, y: Tensor) -> Data:
    """Return a PyG batch of the blocks of DGL, the one of the seed nodes last.

    The targets of a block are the first of its sources, so all blocks number the nodes as `input_nodes` does. A node
    may be a target in several blocks, each with a sample of its own; the sample nearest to the seed nodes is kept.
    """
    edges, known = [], 0
    for block in reversed(blocks):
        pairs = torch.stack(block.edges())
        edges.append(pairs[:, pairs[1] >= known])
        known = block.num_dst_nodes()
    return Data(x=x, y=y, edge_index=torch.cat(edges, 1), batch_size=len(seeds), n_id=input_nodes)


class Batches:
    """The batches of a loader of blocks; features come from wherever they are stored."""

    def __init__(self, loader: Any, graph: Data) -> None:
        self.loader, self.graph = loader, graph

    def set_epoch(self, epoch: int) -> None:
        """Draw the samples of this epoch."""
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Data]:
        x, y = require(self.graph, "x"), require(self.graph, "y")
        for input_nodes, seeds, blocks in self.loader:
            yield batch_of(input_nodes, seeds, blocks, x[input_nodes], y[input_nodes])


@dataclass(frozen=True)
class Block:
    """A stand-in for `dgl.DGLBlock`."""

    pairs: tuple[Tensor, Tensor]
    targets: int

    def edges(self) -> tuple[Tensor, Tensor]:
        """Sources and targets."""
        return self.pairs

    def num_dst_nodes(self) -> int:
        """Number of targets."""
        return self.targets


class StandIn:
    """A stand-in for `dgl.dataloading.DataLoader` with a `NeighborSampler`."""

    def __init__(self, graph: Data, fanout: Sequence[int], batch: int) -> None:
        self.csc, self.fanout, self.batch, self.epoch = CSC.of(graph), fanout, batch, 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the samples of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, list[Block]]]:
        generator = torch.Generator().manual_seed(self.epoch)
        for seeds in torch.randperm(self.csc.num_nodes, generator=generator).split(self.batch):
            nodes, blocks = seeds, []
            for size in self.fanout:
                at, edge = sample_edges(self.csc, nodes, size, generator)
                source = self.csc.source[edge]
                reached = torch.cat([nodes, source[~torch.isin(source, nodes)].unique()])
                order = reached.argsort()
                blocks.insert(0, Block((order[torch.searchsorted(reached[order], source)], at), len(nodes)))
                nodes = reached
            yield nodes, seeds, blocks


def main(dataset: str = "synthetic", epochs: int = 3) -> float:
    graph = fgai.datasets.load(dataset, seed=0)
    model = fgai.Vanilla(epochs=30).fit(backbones.build("gat", graph), graph).model
    fit = fgai.FGAI(epochs=epochs).fit(model, Batches(StandIn(graph, (10, 10), batch=250), graph))
    mask, y = graph["test_mask"], graph["y"]
    right = fgai.read(fit.model, graph).logits.argmax(1)[mask] == y[mask]
    print(f"F1 after {epochs} epochs from blocks: {float(right.float().mean()):.3f}")
    return float(right.float().mean())


if __name__ == "__main__":
    main()
