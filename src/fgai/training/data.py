"""Where a method's graphs come from: one whole graph, or the batches of any PyG loader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from fgai import distributed as ranks
from fgai.errors import DataError
from fgai.graph import require
from fgai.reading import Call, eval_mode


@dataclass(frozen=True)
class Batch:
    """A graph to learn from, and how many of its nodes, the first ones, count: all, or the seeds of a batch."""

    graph: Data
    seed_nodes: int
    step: int = 0  # of the run, so that terms can take turns
    position: int = 0  # among the parts of one step: an opponent meets the same slot again and again

    @property
    def linkable_nodes(self) -> tuple[int, ...] | None:
        """The nodes whose edges the batch holds, through which the seeds can be reached; None if it holds them all."""
        if "batch_size" not in self.graph:  # no loader has taken it out of a larger graph
            return None
        nodes, ends = int(self.graph.num_nodes or 0), require(self.graph, "edge_index")[1]
        last = max(self.seed_nodes, int(ends.max()) + 1 if len(ends) else 0)
        return None if last == nodes else tuple(range(last))

    def known(self, mask: str) -> Tensor:
        """The counting nodes that are in a mask."""
        nodes = require(self.graph, mask)[: self.seed_nodes].nonzero().flatten()
        if len(nodes) == 0:
            raise DataError(
                f"none of the {self.seed_nodes} nodes that count is in `{mask}`; give the loader the nodes to learn from, "
                f"such as seeds=data.{mask}"
            )
        return nodes


class AtHand:
    """The batch at hand: layers leave out what no seed of it hears of, and forget it when the next one comes.

    On the first batch the seeds' answers with and without are compared; for a model whose nodes hear of each other in
    another way than layer after layer nothing is left out.
    """

    def __init__(self) -> None:
        self.forgetting: list[Callable[[], None]] = []  # what to call when another graph comes
        self._hops: Sequence[int] | None = None
        self._fits: bool | None = None
        self._last: Data | None = None

    def __call__(self) -> Sequence[int] | None:
        """How many nodes each hop of the batch has reached."""
        return self._hops

    @contextmanager
    def on(self, part: Batch, model: nn.Module, call: Call) -> Iterator[None]:
        """For the length of a block the batch is this one."""
        if self._last is not part.graph:
            self._last = part.graph
            for forget in self.forgetting:
                forget()
        counts = part.graph.get("num_sampled_nodes")
        try:
            if counts is not None and self._fits is None:
                self._fits = self._same(part, model, call, counts)
            self._hops = counts if self._fits else None
            yield
        finally:
            self._hops = None

    def _same(self, part: Batch, model: nn.Module, call: Call, counts: Sequence[int]) -> bool:
        with eval_mode(model), torch.no_grad():
            told = call(model, part.graph)[: part.seed_nodes]
            self._hops = counts
            found = call(model, part.graph)[: part.seed_nodes]
        return bool(((told - found).abs() <= 1e-4 * told.abs().max()).all())


class BatchSource(Protocol):
    """What the training loop learns from."""

    positions: int  # parts whose gradients make one step
    eval_interval: int  # epochs between two looks at the validation nodes, and between two checkpoints
    has_validation: bool  # there are validation nodes

    def epoch(self, number: int) -> Iterator[list[Batch]]:
        """The parts of each step."""
        ...

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Micro-F1 and cross-entropy on the validation nodes."""
        ...


class FullGraph:
    """One graph, all of whose nodes (or pairs, where links are predicted) count; an epoch is a step."""

    positions, eval_interval = 1, 10

    def __init__(self, data: Data) -> None:
        pairs, chosen = data.get("edge_label_index"), data.get("val_mask")
        self._part = Batch(data, int(data.num_nodes or 0) if pairs is None else pairs.size(1))
        self.has_validation = chosen is not None and bool(chosen.any())

    def epoch(self, number: int) -> Iterator[list[Batch]]:
        """One step with the whole graph."""
        yield [Batch(self._part.graph, self._part.seed_nodes, number)]

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Micro-F1 and cross-entropy on the validation nodes."""
        return validate(model, [self._part], call)


class Batches:
    """The batches of a loader, `slots` of them to a step; `validation` is a loader for the epoch that is kept.

    A batch is a PyG `Data` whose first `batch_size` nodes are those it is about; the others are their neighbours.
    Without `validation` only methods that keep their last epoch can learn.
    """

    eval_interval = 1

    def __init__(self, train: Iterable[Data], validation: Iterable[Data] | None = None, positions: int = 1) -> None:
        self._train, self._validation, self.positions = train, validation, positions
        self.has_validation = validation is not None

    def epoch(self, number: int) -> Iterator[list[Batch]]:
        """The batches of an epoch; a loader that can be told which one it is gets told."""
        told: Any = self._train
        if hasattr(told, "set_epoch"):
            told.set_epoch(number)
        batches, empty = iter(self._train), True
        for step in itertools.count(number):
            some = list(itertools.islice(batches, self.positions))
            if not some and empty:
                raise DataError(f"the loader gave no batch in epoch {number}; give one that can be gone through again")
            if not some:
                return
            empty = False
            yield [Batch(batch, num_seed_nodes(batch), step, position) for position, batch in enumerate(some)]

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Micro-F1 and cross-entropy on the validation nodes, over all batches and ranks."""
        return validate(model, (Batch(batch, num_seed_nodes(batch)) for batch in self._validation or ()), call)


def source(data: Data | Iterable[Data] | Batches) -> BatchSource:
    """What to learn from, given a graph, a loader, or loaders.

    >>> graph = Data(x=torch.ones(3, 1), val_mask=torch.ones(3, dtype=torch.bool))
    >>> next(source(graph).epoch(0))[0].seed_nodes, source([graph]).has_validation
    (3, False)
    """
    if isinstance(data, Data):
        return FullGraph(data)
    return data if isinstance(data, Batches) else Batches(data)


def num_seed_nodes(batch: Data) -> int:
    """How many of a batch's first nodes it is about; all where the loader does not say."""
    return int(batch.get("batch_size") or batch.num_nodes or 0)


def validate(model: nn.Module, parts: Iterable[Batch], call: Call) -> tuple[float, float]:
    """Micro-F1 and cross-entropy on the nodes that count and are in `val_mask`, over all parts and ranks."""
    right, lost, count = 0, 0.0, 0
    for part in parts:
        mask, y = require(part.graph, "val_mask")[: part.seed_nodes], require(part.graph, "y")[: part.seed_nodes]
        with eval_mode(model), torch.no_grad():
            logits = call(model, part.graph)[: part.seed_nodes][mask]
        here = int(mask.sum())
        right += int((logits.argmax(-1) == y[mask]).sum())
        lost += here * float(cross_entropy(logits, y[mask])) if here else 0.0
        count += here
    total = ranks.all_reduce(torch.tensor([right, lost, count], dtype=torch.double))
    if total[2] == 0:
        raise DataError("no node that counts is in `val_mask`; give a mask, or a validation loader, that holds some")
    return float(total[0] / total[2]), float(total[1] / total[2])
