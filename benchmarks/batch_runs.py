"""Graphs made and batches run piece by piece, for `scale.py`: what is generated, timed and weighed there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data

from fgai import FGAI, NodeInjection, backbones, distributed
from fgai.backbones import base, gat
from fgai.calling import call_by_signature
from fgai.graph import require
from fgai.large import DiskGraph, Loader

FEATURES, CLASSES, DEGREE = 64, 16, 10
PIECE = 500_000
QUICK = NodeInjection(nodes=20, edges=40, steps=1, step=0.3)  # it goes on from batch to batch, one long step in each


class Pieces:
    """`fgai.datasets.synthetic` a piece at a time: communities are ranges of ids, and a few edges repeat."""

    def __init__(
        self,
        nodes: int,
        homophily: float = 0.8,
        exponent: float = 2.5,
        degree: float = DEGREE,
        features: int = FEATURES,
    ) -> None:
        self.nodes, self.homophily, self.features, self.links = nodes, homophily, features, int(nodes * degree / 2)
        self._links: list[np.ndarray] = []
        popular = np.random.default_rng(0).random(nodes) ** (-1 / (exponent - 1))
        self.bounds = np.concatenate([[0.0], np.minimum(popular, nodes**0.5).cumsum()])

    def edges(self) -> Iterator[np.ndarray]:
        """Both directions of each link; [2, n]. The links are kept for the second pass of a conversion."""
        for pairs in self._links or self._sample_links():
            yield np.concatenate([pairs, pairs[::-1]], axis=1)

    def _sample_links(self) -> Iterator[np.ndarray]:
        pieces: list[np.ndarray] = []
        for number, first in enumerate(range(0, self.links, PIECE)):
            draws = np.random.default_rng([1, number]).random((3, min(PIECE, self.links - first)))
            one = self._at(draws[0] * self.bounds[-1])
            group = one * CLASSES // self.nodes
            low, high = (self.bounds[-(-(group + more) * self.nodes // CLASSES)] for more in (0, 1))
            inside = draws[2] < self.homophily
            two = self._at(np.where(inside, low + draws[1] * (high - low), draws[1] * self.bounds[-1]))
            pieces.append(np.stack([one, two])[:, one != two].astype(np.int32))
            yield pieces[-1]
        self._links = pieces

    def _at(self, value: np.ndarray) -> np.ndarray:
        return np.clip(np.searchsorted(self.bounds, value, "right") - 1, 0, self.nodes - 1)

    def y(self) -> Iterator[np.ndarray]:
        """The community of each node."""
        for first in range(0, self.nodes, PIECE):
            yield np.arange(first, min(first + PIECE, self.nodes)) * CLASSES // self.nodes

    def x(self) -> Iterator[np.ndarray]:
        """Half the community's direction, plus noise."""
        centre = np.random.default_rng(2).standard_normal((CLASSES, self.features)).astype(np.float32)
        for number, y in enumerate(self.y()):
            noise = np.random.default_rng([3, number]).standard_normal((len(y), self.features), dtype=np.float32)
            yield 0.5 * centre[y] + noise


class Timed:
    """The batches of a loader, with the time and the size of each; the first ones, which warm up, are not counted."""

    def __init__(self, loader: Loader, count: int, warm: int = 2) -> None:
        self.loader, self.count, self.warm = loader, count, warm
        self.cpu, self.wall, self.nodes, self.edges, self.seeds = 0.0, 0.0, 0, 0, 0

    def __iter__(self) -> Iterator[Data]:
        batches = iter(self.loader)
        for number in range(self.count + self.warm):
            cpu, wall = time.process_time(), time.perf_counter()
            batch = next(batches)
            yield batch
            if number >= self.warm:
                self.cpu += time.process_time() - cpu
                self.wall += time.perf_counter() - wall
                self.nodes += int(batch.num_nodes or 0)
                self.edges += batch.num_edges
                self.seeds += batch.batch_size


class Memory:
    """The most memory of its own that this process held: mapped files do not count, the system takes them back."""

    def __init__(self) -> None:
        self.peak_mb, self._on = 0.0, True
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._on = False
        self._thread.join()

    def _watch(self) -> None:
        while self._on:
            own = Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]
            self.peak_mb = max(self.peak_mb, int(own) / 1024)
            time.sleep(0.01)


def opened(folder: Path, nodes: int, batch: int, fanout: tuple[int, ...], count: int) -> Timed:
    """So many batches around random seeds."""
    store = DiskGraph(folder / f"{nodes}")
    wanted = (count + 2) * batch * distributed.world_size()
    seeds = torch.randint(nodes, (2 * wanted,), generator=torch.Generator().manual_seed(0)).unique()
    seeds = seeds[torch.randperm(len(seeds), generator=torch.Generator().manual_seed(1))[:wanted]]
    return Timed(Loader(store, fanout, batch=min(batch, len(seeds) // (count + 2)), seed_nodes=seeds), count)


def model_for_all(features: int = FEATURES) -> nn.Module:
    like = Data(x=torch.ones(1, features), y=torch.tensor([CLASSES - 1]))
    return backbones.build("gat", like)


def plain(batches: Timed) -> None:
    """A loop as a user writes it with PyG's layers and torch's dropout."""
    ours, modules = base.dropout, (cast(Any, base), cast(Any, gat))
    for module in modules:
        module.dropout = nn.functional.dropout
    model = model_for_all().train()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for batch in batches:
        optimizer.zero_grad()
        seeds = batch.batch_size
        nn.functional.cross_entropy(call_by_signature(model, batch)[:seeds], require(batch, "y")[:seeds]).backward()
        optimizer.step()
    for module in modules:
        module.dropout = ours


def faithful(batches: Timed) -> None:
    FGAI(epochs=1, adversary=QUICK).fit(model_for_all(), batches)


def default(batches: Timed) -> None:
    """FGAI with its default adversary, three steps a batch."""
    FGAI(epochs=1).fit(model_for_all(), batches)


def sampling(batches: Timed) -> None:
    for _ in batches:
        pass
