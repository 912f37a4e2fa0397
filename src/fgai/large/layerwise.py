"""Exact readings one layer at a time: each layer runs over all nodes with one hop, and its output waits on disk.

Batches of L hops see a node again for every walk that leads to it, d^L edges a node; layer by layer it is d edges a
layer. It works for any model whose nodes hear of each other in PyG's layers only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai import distributed as ranks
from fgai.calling import Call
from fgai.checks import one_graph
from fgai.devices import device_of, on_device
from fgai.errors import CallError, SettingError
from fgai.large.loader import columns_of, full_neighbour_loader
from fgai.large.store import DiskGraph
from fgai.large.streaming import BatchReading
from fgai.patching import message_passing_layers
from fgai.progress import progress
from fgai.reading import Reader, open_reader
from fgai.training.data import num_seed_nodes

PROBES = 2  # nodes on which the result is compared with that of whole neighbourhoods
ROUNDING = 1e-3  # relative to the largest logit


def layerwise(
    model: nn.Module, graph: Data | DiskGraph, *, batch: int = 1_024, call: Call | None = None
) -> Iterator[BatchReading]:
    """Read all nodes, batch by batch, with the attention of the last layer.

    A few nodes are first compared with what whole neighbourhoods give, and a model that does not fit is refused.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> [len(seen.nodes) for seen in layerwise(backbones.build("gat", data), data, batch=600)]
    [600, 400]
    """
    if ranks.world_size() > 1:
        raise SettingError(f"{ranks.world_size()} ranks; layer by layer one process reads all, use exact() on several")
    loader, device = full_neighbour_loader(graph, hops=1, batch=batch), device_of(model)
    with open_reader(model, call) as read, tempfile.TemporaryDirectory() as folder:
        *early, last = _in_order(read, on_device(next(iter(loader)), device))
        known: dict[str, Tensor] = {}
        with progress("layer by layer", (len(early) + 1) * len(loader)) as advance:
            for name in early:
                found = None
                for part in loader:
                    rows = _output(read, name, part, known)
                    found = _on_disk(Path(folder), loader.shares.count, rows) if found is None else found
                    found[part.n_id[: len(rows)]] = rows.cpu()
                    advance(name)
                known[name] = torch.empty(0) if found is None else found
            _compare(read, graph, known)
            for part in loader:
                yield _seen(read, part, known)
                advance(last)


class _Enough(Exception):
    """The layer that was wanted has answered; what comes after it need not run."""


def _in_order(read: Reader, part: Data) -> list[str]:
    """The layers that exchange, in the order in which they act; each acts once."""
    order: list[str] = []
    with ExitStack() as undo:
        for name, layer in message_passing_layers(read.model).items():
            undo.callback(layer.register_forward_pre_hook(lambda *_, name=name: order.append(name)).remove)
        read.logits(part)
    if not order or len(set(order)) < len(order):
        raise CallError(
            f"{type(read.model).__name__} runs {order or 'no layer of PyG'}; layer by layer each must run once: "
            "read it in batches of whole neighbourhoods, with exact()"
        )
    return order


def _output(read: Reader, name: str, part: Data, known: Mapping[str, Tensor]) -> Tensor:
    """What a layer gives for the seeds of a batch."""

    def stop(_: nn.Module, __: object, out: Tensor) -> None:
        raise _Enough(out)

    handle = read.model.get_submodule(name).register_forward_hook(stop)
    try:
        with _held(read.model, part.n_id, known):
            read.logits(on_device(part, device_of(read.model)))
    except _Enough as found:
        return found.args[0][: num_seed_nodes(part)]
    finally:
        handle.remove()
    raise CallError(f"{name} did not run; layer by layer a model must run the same layers on every batch")


@contextmanager
def _held(model: nn.Module, ids: Tensor, known: Mapping[str, Tensor]) -> Iterator[None]:
    """For the length of a block, layers whose output is known give it, for these nodes, instead of computing it."""
    ids, device = ids.cpu(), device_of(model)
    with ExitStack() as undo:
        for name, rows in known.items():
            layer = model.get_submodule(name)
            layer.forward = lambda *_, rows=rows, **__: rows[ids].to(device)
            undo.callback(delattr, layer, "forward")
        yield


def _seen(read: Reader, part: Data, known: Mapping[str, Tensor]) -> BatchReading:
    part = on_device(part, device_of(read.model))
    with _held(read.model, part.n_id, known):
        return BatchReading(part.n_id, read.checked(one_graph(part)).head(num_seed_nodes(part)))


def _on_disk(folder: Path, nodes: int, like: Tensor) -> Tensor:
    """Rows like these for every node, in a file, so that memory holds only what is in use."""
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        shape = (nodes, *like.shape[1:])
        return torch.from_numpy(np.memmap(file.name, like.cpu().numpy().dtype, "w+", shape=shape))


def _compare(read: Reader, graph: Data | DiskGraph, known: Mapping[str, Tensor]) -> None:
    """Nodes with few neighbours, and one hop more than there are layers: a model that reaches further is found out."""
    degree = columns_of(graph).start.diff()
    seed_nodes = degree.masked_fill(degree == 0, degree.max() + 1).topk(min(PROBES, len(degree)), largest=False).indices
    wide = next(iter(full_neighbour_loader(graph, hops=len(known) + 2, seed_nodes=seed_nodes)))
    told = read.logits(on_device(wide, device_of(read.model)))[: len(seed_nodes)]
    found = _seen(read, next(iter(full_neighbour_loader(graph, hops=1, seed_nodes=seed_nodes))), known).reading.logits
    if (told - found).abs().max() > ROUNDING * told.abs().max():
        raise CallError(
            f"layer by layer {type(read.model).__name__} says {found.tolist()} and at once {told.tolist()}: "
            "its nodes hear of each other outside PyG's layers; read it in batches of whole neighbourhoods, "
            "with exact()"
        )
