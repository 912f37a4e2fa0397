"""Where a method's graphs come from: one whole graph, or the batches of any PyG loader."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data, HeteroData

from fgai import distributed as ranks
from fgai.adversaries.gains import binary_logits
from fgai.checks import check_finite, check_labels, one_graph
from fgai.devices import device_of, on_device
from fgai.errors import DataError
from fgai.graph import require
from fgai.reading import Call, Reading, eval_mode

MASKS = ("train_mask", "val_mask")  # those that a method learns from and is judged by


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

    def on(self, device: torch.device) -> Batch:
        """The same part with its graph on a device; loaders give batches on the CPU, and the model may be elsewhere."""
        graph = on_device(self.graph, device)
        return self if graph is self.graph else replace(self, graph=graph)

    def known(self, mask: str) -> Tensor:
        """The counting nodes that are in a mask."""
        nodes = require(self.graph, mask)[: self.seed_nodes].nonzero().flatten()
        if len(nodes) == 0:
            raise DataError(
                f"none of the {self.seed_nodes} seed nodes is in `{mask}`; give the loader the nodes to train on, "
                f"such as seed_nodes=data.{mask}"
            )
        return nodes


class BatchSource(Protocol):
    """What the training loop learns from."""

    positions: int  # parts whose gradients make one step
    eval_interval: int  # epochs between two looks at the validation nodes, and between two checkpoints
    has_validation: bool  # there are validation nodes

    @property
    def graphs(self) -> Sequence[Any]:
        """What is learnt from, as far as it is at hand: graphs, stores, loaders."""
        ...

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

    @property
    def graphs(self) -> Sequence[Any]:
        """The graph."""
        return [self._part.graph]

    def epoch(self, number: int) -> Iterator[list[Batch]]:
        """One step with the whole graph."""
        yield [Batch(self._part.graph, self._part.seed_nodes, number)]

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Micro-F1 and cross-entropy on the validation nodes."""
        return validate(model, [self._part], call)


class Batches:
    """The batches of a loader, `positions` of them to a step; `validation` is a loader for the epoch that is kept.

    A batch is a PyG `Data` whose first `batch_size` nodes are those it is about; the others are their neighbours.
    Without `validation` only methods that keep their last epoch can learn.
    """

    eval_interval = 1

    def __init__(self, train: Iterable[Data], validation: Iterable[Data] | None = None, positions: int = 1) -> None:
        self._train, self._validation, self.positions = train, validation, positions
        self.has_validation = validation is not None

    @property
    def graphs(self) -> Sequence[Any]:
        """The graphs that the loaders take batches of, where they say so, as PyG's and ours do; else the loaders."""
        loaders = [loader for loader in (self._train, self._validation) if loader is not None]
        return [getattr(loader, "graph", getattr(loader, "data", loader)) for loader in loaders]

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
            batches_of_step = [one_graph(batch, MASKS) for batch in some]
            yield [
                Batch(batch, num_seed_nodes(batch), step, position) for position, batch in enumerate(batches_of_step)
            ]

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Micro-F1 and cross-entropy on the validation nodes, over all batches and ranks."""
        batches = (one_graph(batch, MASKS) for batch in self._validation or ())
        return validate(model, (Batch(batch, num_seed_nodes(batch)) for batch in batches), call)


def source(data: Data | Iterable[Data] | Batches, *needed: str) -> BatchSource:
    """What to learn from, given a graph (which has what is `needed`), a loader, or loaders.

    >>> edges = torch.tensor([[0], [1]])
    >>> graph = Data(x=torch.ones(3, 1), edge_index=edges, val_mask=torch.ones(3, dtype=torch.bool))
    >>> next(source(graph).epoch(0))[0].seed_nodes, source([graph]).has_validation
    (3, False)
    """
    if isinstance(data, Data | HeteroData) or not (isinstance(data, Batches) or hasattr(data, "__iter__")):
        found = FullGraph(one_graph(data, MASKS))
        for name in needed:
            require(found.graphs[0], name)
        return found
    return data if isinstance(data, Batches) else Batches(data)


def num_seed_nodes(batch: Data) -> int:
    """How many of a batch's first nodes it is about; all where the loader does not say."""
    return int(batch.get("batch_size") or batch.num_nodes or 0)


def validate(model: nn.Module, parts: Iterable[Batch], call: Call) -> tuple[float, float]:
    """Micro-F1 and cross-entropy on the nodes that count and are in `val_mask`, over all parts and ranks."""
    right, lost, count = 0, 0.0, 0
    for part in (part.on(device_of(model)) for part in parts):
        mask, y = require(part.graph, "val_mask")[: part.seed_nodes], require(part.graph, "y")[: part.seed_nodes]
        with eval_mode(model), torch.no_grad():
            logits = binary_logits(Reading(call(model, part.graph), {}))[: part.seed_nodes][mask]
        check_labels(y[mask], logits.size(1))
        here = int(mask.sum())
        right += int((logits.argmax(-1) == y[mask]).sum())
        lost += here * float(cross_entropy(logits, y[mask])) if here else 0.0
        count += here
    total = ranks.all_reduce(torch.tensor([right, lost, count], dtype=torch.double))
    if total[2] == 0:
        raise DataError("no node that counts is in `val_mask`; give a mask, or a validation loader, that holds some")
    check_finite("the answers on the validation nodes", total[1], "lower the learning rate, or scale the features")
    return float(total[0] / total[2]), float(total[1] / total[2])
