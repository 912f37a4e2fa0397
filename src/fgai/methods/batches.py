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

from fgai import ranks
from fgai.adversary.gains import two_columns
from fgai.checks import check_finite, check_labels, one_graph
from fgai.devices import device_of, on_device
from fgai.errors import DataError
from fgai.graph import need
from fgai.reading import Call, Reading, eval_mode

MASKS = ("train_mask", "val_mask")  # those that a method learns from and is judged by


@dataclass(frozen=True)
class Part:
    """A graph to learn from, and how many of its nodes, the first ones, count: all, or the seeds of a batch."""

    graph: Data
    seeds: int
    step: int = 0  # of the run, so that terms can take turns
    slot: int = 0  # among the parts of one step: an opponent meets the same slot again and again

    @property
    def hearing(self) -> tuple[int, ...] | None:
        """The nodes whose edges the batch holds, through which the seeds can be reached; None if it holds them all."""
        if "batch_size" not in self.graph:  # no loader has taken it out of a larger graph
            return None
        nodes, ends = int(self.graph.num_nodes or 0), need(self.graph, "edge_index")[1]
        last = max(self.seeds, int(ends.max()) + 1 if len(ends) else 0)
        return None if last == nodes else tuple(range(last))

    def on(self, device: torch.device) -> Part:
        """The same part with its graph on a device; loaders give batches on the CPU, and the model may be elsewhere."""
        graph = on_device(self.graph, device)
        return self if graph is self.graph else replace(self, graph=graph)

    def known(self, mask: str) -> Tensor:
        """The counting nodes that are in a mask."""
        nodes = need(self.graph, mask)[: self.seeds].nonzero().flatten()
        if len(nodes) == 0:
            raise DataError(
                f"none of the {self.seeds} nodes that count is in `{mask}`; give the loader the nodes to learn from, "
                f"such as seeds=data.{mask}"
            )
        return nodes


class Source(Protocol):
    """What the training loop learns from."""

    slots: int  # parts whose gradients make one step
    every: int  # epochs between two looks at the validation nodes, and between two checkpoints
    judged: bool  # there are validation nodes

    @property
    def graphs(self) -> Sequence[Any]:
        """What is learnt from, as far as it is at hand: graphs, stores, loaders."""
        ...

    def epoch(self, number: int) -> Iterator[list[Part]]:
        """The parts of each step."""
        ...

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Micro-F1 and cross-entropy on the validation nodes."""
        ...


class Whole:
    """One graph, all of whose nodes (or pairs, where links are predicted) count; an epoch is a step."""

    slots, every = 1, 10

    def __init__(self, data: Data) -> None:
        pairs, chosen = data.get("edge_label_index"), data.get("val_mask")
        self._part = Part(data, int(data.num_nodes or 0) if pairs is None else pairs.size(1))
        self.judged = chosen is not None and bool(chosen.any())

    @property
    def graphs(self) -> Sequence[Any]:
        """The graph."""
        return [self._part.graph]

    def epoch(self, number: int) -> Iterator[list[Part]]:
        """One step with the whole graph."""
        yield [Part(self._part.graph, self._part.seeds, number)]

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Micro-F1 and cross-entropy on the validation nodes."""
        return validate(model, [self._part], call)


class Batches:
    """The batches of a loader, `slots` of them to a step; `validation` is a loader for the epoch that is kept.

    A batch is a PyG `Data` whose first `batch_size` nodes are those it is about; the others are their neighbours.
    Without `validation` only methods that keep their last epoch can learn.
    """

    every = 1

    def __init__(self, train: Iterable[Data], validation: Iterable[Data] | None = None, slots: int = 1) -> None:
        self._train, self._validation, self.slots = train, validation, slots
        self.judged = validation is not None

    @property
    def graphs(self) -> Sequence[Any]:
        """The graphs that the loaders take batches of, where they say so, as PyG's and ours do; else the loaders."""
        loaders = [loader for loader in (self._train, self._validation) if loader is not None]
        return [getattr(loader, "graph", getattr(loader, "data", loader)) for loader in loaders]

    def epoch(self, number: int) -> Iterator[list[Part]]:
        """The batches of an epoch; a loader that can be told which one it is gets told."""
        told: Any = self._train
        if hasattr(told, "set_epoch"):
            told.set_epoch(number)
        batches, empty = iter(self._train), True
        for step in itertools.count(number):
            some = list(itertools.islice(batches, self.slots))
            if not some and empty:
                raise DataError(f"the loader gave no batch in epoch {number}; give one that can be gone through again")
            if not some:
                return
            empty = False
            batches_of_step = [one_graph(batch, MASKS) for batch in some]
            yield [Part(batch, seeds_of(batch), step, slot) for slot, batch in enumerate(batches_of_step)]

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Micro-F1 and cross-entropy on the validation nodes, over all batches and ranks."""
        batches = (one_graph(batch, MASKS) for batch in self._validation or ())
        return validate(model, (Part(batch, seeds_of(batch)) for batch in batches), call)


def source(data: Data | Iterable[Data] | Batches, *needed: str) -> Source:
    """What to learn from, given a graph (which has what is `needed`), a loader, or loaders.

    >>> edges = torch.tensor([[0], [1]])
    >>> graph = Data(x=torch.ones(3, 1), edge_index=edges, val_mask=torch.ones(3, dtype=torch.bool))
    >>> next(source(graph).epoch(0))[0].seeds, source([graph]).judged
    (3, False)
    """
    if isinstance(data, Data | HeteroData) or not (isinstance(data, Batches) or hasattr(data, "__iter__")):
        found = Whole(one_graph(data, MASKS))
        for name in needed:
            need(found.graphs[0], name)
        return found
    return data if isinstance(data, Batches) else Batches(data)


def seeds_of(batch: Data) -> int:
    """How many of a batch's first nodes it is about; all where the loader does not say."""
    return int(batch.get("batch_size") or batch.num_nodes or 0)


def validate(model: nn.Module, parts: Iterable[Part], call: Call) -> tuple[float, float]:
    """Micro-F1 and cross-entropy on the nodes that count and are in `val_mask`, over all parts and ranks."""
    right, lost, count = 0, 0.0, 0
    for part in (part.on(device_of(model)) for part in parts):
        mask, y = need(part.graph, "val_mask")[: part.seeds], need(part.graph, "y")[: part.seeds]
        with eval_mode(model), torch.no_grad():
            logits = two_columns(Reading(call(model, part.graph), {}))[: part.seeds][mask]
        check_labels(y[mask], logits.size(1))
        here = int(mask.sum())
        right += int((logits.argmax(-1) == y[mask]).sum())
        lost += here * float(cross_entropy(logits, y[mask])) if here else 0.0
        count += here
    total = ranks.summed(torch.tensor([right, lost, count], dtype=torch.double))
    if total[2] == 0:
        raise DataError("no node that counts is in `val_mask`; give a mask, or a validation loader, that holds some")
    check_finite("the answers on the validation nodes", total[1], "lower the learning rate, or scale the features")
    return float(total[0] / total[2]), float(total[1] / total[2])
