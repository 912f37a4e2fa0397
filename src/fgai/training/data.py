"""Training data of a method: one full graph or batch of graphs, or the batches of a PyG loader."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data, HeteroData

from fgai import distributed
from fgai.adversaries.gains import binary_logits
from fgai.calling import Call, run_model
from fgai.checks import check_finite, check_labels, one_graph
from fgai.devices import device_of, on_device
from fgai.errors import DataError
from fgai.graph import require
from fgai.items import copied, items_of, select_graphs
from fgai.modes import eval_mode
from fgai.reading import Reading

MASKS = ("train_mask", "val_mask")  # for the loss, and for the choice of the best epoch


@dataclass(frozen=True)
class Batch:
    """A graph whose first `seed_nodes` items enter the loss: all of them, or the seed nodes of a sampled batch."""

    graph: Data
    seed_nodes: int
    step: int = 0  # of the run, which the training loop counts; terms may alternate by it
    position: int = 0  # among the batches of one step; each position has its own warm-started attack

    @property
    def linkable_nodes(self) -> tuple[int, ...] | None:
        """The nodes whose incoming edges are in the batch; only through them can an attack reach the seed nodes.

        None if these are all nodes.
        """
        if "batch_size" not in self.graph:  # not sampled from a larger graph
            return None
        nodes, ends = int(self.graph.num_nodes or 0), require(self.graph, "edge_index")[1]
        last = max(self.seed_nodes, int(ends.max()) + 1 if len(ends) else 0)
        return None if last == nodes else tuple(range(last))

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its graph on `device`."""
        graph = on_device(self.graph, device)
        return self if graph is self.graph else replace(self, graph=graph)

    def seed_nodes_in(self, mask: str) -> Tensor:
        """Return the indices of the seed nodes in the mask of this name."""
        nodes = require(self.graph, mask)[: self.seed_nodes].nonzero().flatten()
        if len(nodes) == 0:
            raise DataError(
                f"none of the {self.seed_nodes} seed nodes is in `{mask}`; give the loader the nodes to train on, "
                f"such as seed_nodes=data.{mask}"
            )
        return nodes


class BatchSource(Protocol):
    """The input of the training loop."""

    positions: int  # batches per step; their gradients are averaged
    eval_interval: int  # epochs between two validations, and between two checkpoints
    has_validation: bool  # whether there are validation nodes

    @property
    def graphs(self) -> Sequence[Any]:
        """The graphs, stores or loaders that the batches come from."""
        ...

    def epoch(self, number: int) -> Iterator[list[Batch]]:
        """Yield the batches of each step."""
        ...

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Return micro-F1 and cross-entropy on the validation nodes."""
        ...


class FullGraph:
    """One graph whose items, nodes or pairs, all enter the loss; an epoch is one step.

    Of a batch of graphs, those in `train_mask` are trained on: no method reads the others before the validation.
    """

    positions, eval_interval = 1, 10

    def __init__(self, data: Data) -> None:
        val_mask = data.get("val_mask")
        self._batch = Batch(data, items_of(data).count)
        mask, graph = data.get("train_mask"), data
        if items_of(data).kind == "graphs" and mask is not None and mask.any():
            graph = select_graphs(data, mask)
        self._train = Batch(graph, items_of(graph).count)
        self.has_validation = val_mask is not None and bool(val_mask.any())

    @property
    def graphs(self) -> Sequence[Any]:
        """The graph."""
        return [self._batch.graph]

    def epoch(self, number: int) -> Iterator[list[Batch]]:
        """Yield one step with the full graph."""
        yield [self._train]

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Return micro-F1 and cross-entropy on the validation nodes."""
        return validate(model, [self._batch], call)


class Batches:
    """Loaders for training and for validation, to be given to `fit` instead of a graph.

    A batch is a PyG `Data` whose first `batch_size` nodes are the seed nodes; the others are their neighbours. Or it is
    a `Batch` of graphs from PyG's `DataLoader`; without masks, all graphs of `train` are trained on.

    Args:
        train: Loader of the batches to train on. If it has `set_epoch`, each epoch calls it.
        validation: Loader of the batches that choose the best epoch. Methods that keep their last epoch (`FGAI`) do
            not need it.
        positions: Batches per step; their gradients are averaged.

    >>> from fgai import backbones, datasets
    >>> from fgai.large import Loader, full_neighbour_loader
    >>> from fgai.methods import Vanilla
    >>> data = datasets.load("synthetic")
    >>> train = Loader(data, fanout=(5, 5), batch=50, seed_nodes=data.train_mask)
    >>> validation = full_neighbour_loader(data, hops=2, seed_nodes=data.val_mask)
    >>> fit = Vanilla(epochs=2).fit(backbones.build("gat", data), Batches(train, validation))
    >>> len(fit.history)
    2
    """

    eval_interval = 1

    def __init__(self, train: Iterable[Data], validation: Iterable[Data] | None = None, positions: int = 1) -> None:
        self._train, self._validation, self.positions = train, validation, positions
        self.has_validation = validation is not None

    @property
    def graphs(self) -> Sequence[Any]:
        """The graphs behind the loaders (their `graph`, `data` or list of graphs), or the loaders themselves."""
        loaders = [loader for loader in (self._train, self._validation) if loader is not None]
        return [graph for loader in loaders for graph in _graphs_of(loader)]

    def epoch(self, number: int) -> Iterator[list[Batch]]:
        """Yield the batches of each step of an epoch."""
        loader: Any = self._train
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(number)
        graphs, empty = iter(loader), True
        while group := list(itertools.islice(graphs, self.positions)):
            empty = False
            group = [_masked(one_graph(graph, MASKS), "train_mask") for graph in group]
            yield [Batch(graph, num_seed_nodes(graph), position=position) for position, graph in enumerate(group)]
        if empty:
            raise DataError(f"the loader gave no batch in epoch {number}; give one that can be iterated repeatedly")

    def validate(self, model: nn.Module, call: Call) -> tuple[float, float]:
        """Return micro-F1 and cross-entropy on the validation nodes, over all batches and ranks."""
        graphs = (_masked(one_graph(graph, MASKS), "val_mask") for graph in self._validation or ())
        return validate(model, (Batch(graph, num_seed_nodes(graph)) for graph in graphs), call)


def source(data: Data | Iterable[Data] | Batches, *required: str) -> BatchSource:
    """Return the batch source of a graph, which must have the `required` attributes, a loader, or `Batches`.

    >>> edges = torch.tensor([[0], [1]])
    >>> graph = Data(x=torch.ones(3, 1), edge_index=edges, val_mask=torch.ones(3, dtype=torch.bool))
    >>> next(source(graph).epoch(0))[0].seed_nodes, source([graph]).has_validation
    (3, False)
    """
    if isinstance(data, Data | HeteroData) or not (isinstance(data, Batches) or hasattr(data, "__iter__")):
        full_graph = FullGraph(one_graph(data, MASKS))
        for name in required:
            require(full_graph.graphs[0], name)
        return full_graph
    return data if isinstance(data, Batches) else Batches(data)


def num_seed_nodes(graph: Data) -> int:
    """Return the number of seed nodes of a loader's batch; all nodes or graphs if it has no `batch_size`."""
    return int(graph.get("batch_size") or items_of(graph).count)


def _graphs_of(loader: Any) -> list[Any]:
    """Return the list of graphs that a loader collates, or the one graph that it samples from, or the loader."""
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, list) and all(isinstance(graph, Data) for graph in dataset):
        return dataset
    return [getattr(loader, "graph", getattr(loader, "data", loader))]


def _masked(graph: Data, name: str) -> Data:
    """Return a batch of graphs with a mask of all graphs, if it has no mask of this name; other graphs as they are."""
    items = items_of(graph)
    if items.batch is not None and name not in graph:
        graph = copied(graph)
        graph[name] = torch.ones(items.count, dtype=torch.bool, device=items.batch.device)
    return graph


def validate(model: nn.Module, batches: Iterable[Batch], call: Call) -> tuple[float, float]:
    """Return micro-F1 and cross-entropy on the seed nodes in `val_mask`, over all batches and ranks."""
    correct, loss, count = 0, 0.0, 0
    for batch in (batch.to(device_of(model)) for batch in batches):
        mask, y = require(batch.graph, "val_mask")[: batch.seed_nodes], require(batch.graph, "y")[: batch.seed_nodes]
        with eval_mode(model), torch.no_grad():
            logits = binary_logits(Reading(run_model(model, batch.graph, call), {}))[: batch.seed_nodes][mask]
        check_labels(y[mask], logits.size(1))
        size = int(mask.sum())
        correct += int((logits.argmax(-1) == y[mask]).sum())
        loss += size * float(cross_entropy(logits, y[mask])) if size else 0.0
        count += size
    total = distributed.all_reduce(torch.tensor([correct, loss, count], dtype=torch.double))
    if total[2] == 0:
        raise DataError("no seed node is in `val_mask`; give a mask or a validation loader with validation nodes")
    check_finite("the logits on the validation nodes", total[1], "lower the learning rate, or scale the features")
    return float(total[0] / total[2]), float(total[1] / total[2])
