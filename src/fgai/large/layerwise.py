"""Exact readings layer by layer: each layer runs over all nodes with one hop, and its output is stored on disk.

With L layers and degree d, a batch of full neighbourhoods reads d^L edges per node; layer by layer it is L d edges. The
model may exchange messages between nodes only in PyG's message-passing layers.
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

from fgai import distributed
from fgai.calling import Call
from fgai.checks import one_graph
from fgai.devices import device_of, on_device
from fgai.errors import CallError
from fgai.large.loader import Loader, csc_of, full_neighbour_loader
from fgai.large.probes import probe_nodes
from fgai.large.store import DiskGraph
from fgai.large.streaming import BatchReading
from fgai.patching import message_passing_layers
from fgai.progress import progress
from fgai.reading import Reader, open_reader
from fgai.training.data import num_seed_nodes

TOLERANCE = 1e-3  # relative to the largest logit


def layerwise_readings(
    model: nn.Module,
    graph: Data | DiskGraph,
    *,
    batch: int = 1_024,
    call: Call | None = None,
    folder: str | Path | None = None,
) -> Iterator[BatchReading]:
    """Yield exact readings of all nodes, batch by batch, with the attention of the last layer.

    Of several ranks each computes its share of the batches of each layer, and yields its share of the readings. All
    ranks must read them to the end.

    Args:
        model: A model that runs each of its message-passing layers once.
        graph: A graph in memory or on disk.
        batch: Seed nodes per batch.
        call: How the model is called on a graph; by its signature by default.
        folder: Where outputs of layers are stored meanwhile. Ranks of several machines need one that they share.

    Raises:
        CallError: If the logits of a few nodes differ from those from their full neighbourhoods, because nodes
            exchange messages outside PyG's layers.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> [len(part.nodes) for part in layerwise_readings(backbones.build("gat", data), data, batch=600)]
    [600, 400]
    """
    loader, device = full_neighbour_loader(graph, hops=1, batch=batch), device_of(model)
    with open_reader(model, call) as read, _shared_folder(folder) as place:
        probe = loader.batch_of([0])
        *early, last = _layer_order(read, on_device(probe, device))
        outputs: dict[str, Tensor] = {}
        with progress("layer by layer", (len(early) + 1) * len(loader)) as advance:
            for number, name in enumerate(early):
                like = _layer_output(read, name, probe, outputs)
                output = _stored_rows(place / f"{number}", loader.shares.count, like)
                for part in loader:
                    rows = _layer_output(read, name, part, outputs)
                    output[part.n_id[: len(rows)]] = rows.cpu()
                    advance(name)
                distributed.barrier()
                outputs[name] = output
            _compare(read, loader.graph, outputs)
            for part in loader:
                yield _read_last_layer(read, part, outputs)
                advance(last)


def exact_loader(model: nn.Module, graph: Data | DiskGraph, *, batch: int = 256, call: Call | None = None) -> Loader:
    """Return the loader of full neighbourhoods with as many hops as the model has layers.

    Args:
        model: A model that exchanges messages between nodes in PyG's layers only.
        graph: A graph in memory or on disk.
        batch: Seed nodes per batch.
        call: How the model is called on a graph; by its signature by default.

    Raises:
        CallError: If the logits of a few nodes change with one more hop.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> exact_loader(backbones.build("gat", data), data).node_sampler.fanout
    (-1, -1)
    """
    loader, device = full_neighbour_loader(graph, hops=1), device_of(model)
    csc = csc_of(loader.graph)
    with open_reader(model, call) as read:
        hops = len(_layers_run(read, on_device(loader.batch_of(probe_nodes(csc, hops=1)), device)))
        loaders = [full_neighbour_loader(loader.graph, hops=number) for number in (hops, hops + 1)]
        for node in probe_nodes(csc, hops).split(1):  # one by one: a neighbourhood must not complete another
            logits, expected = (read.logits(on_device(one.batch_of(node), device))[0] for one in loaders)
            if (expected - logits).abs().max() > TOLERANCE * expected.abs().max():
                raise CallError(
                    f"{type(model).__name__} runs {hops} layers of PyG, but outputs {logits.tolist()} for node "
                    f"{int(node)} on {hops} hops and {expected.tolist()} on one more: its nodes exchange messages "
                    "elsewhere, or several times in a layer; give full_neighbour_loader the hops that it reads, or use "
                    "the whole graph"
                )
    return full_neighbour_loader(graph, hops, batch=batch)


class _LayerDone(Exception):
    """Carries the output of a layer; stops the forward pass after it."""


def _layers_run(read: Reader, part: Data) -> list[str]:
    """Return the message-passing layers in the order in which they run."""
    order: list[str] = []
    with ExitStack() as undo:
        for name, layer in message_passing_layers(read.model).items():
            undo.callback(layer.register_forward_pre_hook(lambda *_, name=name: order.append(name)).remove)
        read.logits(part)
    return order


def _layer_order(read: Reader, part: Data) -> list[str]:
    """Return the message-passing layers in the order in which they run; each must run once."""
    order = _layers_run(read, part)
    if not order or len(set(order)) < len(order):
        raise CallError(
            f"{type(read.model).__name__} runs {order or 'no layer of PyG'}, but layer by layer each layer must run "
            "once; read it with full_neighbour_loader()"
        )
    return order


def _layer_output(read: Reader, name: str, part: Data, outputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of a layer for the seed nodes of a batch."""

    def stop(_: nn.Module, __: object, out: Tensor) -> None:
        raise _LayerDone(out)

    handle = read.model.get_submodule(name).register_forward_hook(stop)
    try:
        with _replaced_layers(read.model, part.n_id, outputs):
            read.logits(on_device(part, device_of(read.model)))
        raise CallError(f"{name} did not run; layer by layer a model must run the same layers on each batch")
    except _LayerDone as done:
        output = done.args[0]
    finally:
        handle.remove()
    if not isinstance(output, Tensor):
        raise CallError(
            f"{name} returns a {type(output).__name__}, and layer by layer one tensor per layer is stored; call it "
            "without return_attention_weights (fgai reads the attention itself), or use exact_loader()"
        )
    return output[: num_seed_nodes(part)]


@contextmanager
def _replaced_layers(model: nn.Module, ids: Tensor, outputs: Mapping[str, Tensor]) -> Iterator[None]:
    """Make the layers in `outputs` return their stored rows of these nodes instead of computing them."""
    ids, device = ids.cpu(), device_of(model)
    with ExitStack() as undo:
        for name, rows in outputs.items():
            layer = model.get_submodule(name)
            layer.forward = lambda *_, rows=rows, **__: rows[ids].to(device)
            undo.callback(delattr, layer, "forward")
        yield


def _read_last_layer(read: Reader, part: Data, outputs: Mapping[str, Tensor]) -> BatchReading:
    part = on_device(part, device_of(read.model))
    with _replaced_layers(read.model, part.n_id, outputs):
        return BatchReading(part.n_id, read.checked(one_graph(part)).head(num_seed_nodes(part)))


@contextmanager
def _shared_folder(parent: str | Path | None) -> Iterator[Path]:
    """Yield a new folder of all ranks; the first rank deletes it when all have left."""
    if distributed.rank() > 0:
        place = distributed.broadcast_text("")
        yield Path(place)
        distributed.barrier()
        return
    with tempfile.TemporaryDirectory(dir=parent) as place:
        distributed.broadcast_text(place)
        yield Path(place)
        distributed.barrier()


def _stored_rows(path: Path, nodes: int, like: Tensor) -> Tensor:
    """Return a file-backed tensor with one row like these for each node, which all ranks share."""
    shape, dtype = (nodes, *like.shape[1:]), like.cpu().numpy().dtype
    if distributed.rank() == 0:
        np.memmap(path, dtype, "w+", shape=shape)
    distributed.barrier()
    return torch.from_numpy(np.memmap(path, dtype, "r+", shape=shape))


def _compare(read: Reader, graph: Data | DiskGraph, outputs: Mapping[str, Tensor]) -> None:
    """Compare the logits of a few nodes with those from full neighbourhoods, one hop larger than the layers need.

    The extra hop shows whether the model reaches further than its layers.
    """
    seed_nodes, hops = probe_nodes(csc_of(graph), len(outputs) + 1), len(outputs) + 2
    larger = full_neighbour_loader(graph, hops).batch_of(seed_nodes)
    expected = read.logits(on_device(larger, device_of(read.model)))[: len(seed_nodes)]
    narrow = full_neighbour_loader(graph, hops=1).batch_of(seed_nodes)
    logits = _read_last_layer(read, narrow, outputs).reading.logits
    if expected.shape != logits.shape or not logits.numel():
        raise CallError(
            f"{type(read.model).__name__} returned {list(logits.shape)} logits layer by layer, {list(expected.shape)} "
            "on full neighbourhoods; fgai needs a row per node and a column per class"
        )
    if (expected - logits).abs().max() > TOLERANCE * expected.abs().max():
        raise CallError(
            f"{type(read.model).__name__} outputs {logits.tolist()} layer by layer for the nodes "
            f"{seed_nodes.tolist()}, but {expected.tolist()} on full neighbourhoods: its nodes exchange messages "
            "outside PyG's layers, or several times in a layer; read it with full_neighbour_loader()"
        )
