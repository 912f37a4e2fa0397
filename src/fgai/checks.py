"""Checks of graphs, logits and attention. All public functions validate their inputs here.

A check costs one pass over the tensors. Public functions check the graph, the clean reading and the final attacked
reading once each; the steps of an attack are not checked. Support for another kind of graph is added here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader

from fgai.attention import Attention
from fgai.errors import CallError, DataError, NotFiniteError, SettingError
from fgai.graph import count_nodes, is_edge_list
from fgai.items import Items, copied, items_of
from fgai.readers import all_finite
from fgai.typed import is_typed, join

GraphInput = Data | HeteroData | Sequence[Data] | DataLoader  # a graph, or several that become one batch
MANY_ROWS = 20  # that lie in [0, 1] are probabilities: the logits of a trained model have both signs
SUM_TOLERANCE = 1e-3  # |sum of probabilities - 1|, wide enough for half precision
CLEAN = "the clean graph"
UNSTABLE = "check the weights of the model, and whether features are far too large"


def check_finite(what: str, value: Tensor, remedy: str = "replace or remove them") -> None:
    """Raise `NotFiniteError` unless all values are finite. Of a sparse tensor, the stored values are checked.

    >>> check_finite("`x`", torch.tensor([1.0, torch.nan]))
    Traceback (most recent call last):
    fgai.errors.NotFiniteError: 1 of 2 numbers of `x` are not finite; replace or remove them
    """
    value = value.detach()
    value = value.coalesce().values() if value.layout == torch.sparse_coo else value
    if value.layout != torch.strided or not value.is_floating_point() or value.numel() == 0:
        return
    if not all_finite(value):
        wrong = int((~value.isfinite()).sum())
        raise NotFiniteError(f"{wrong} of {value.numel()} numbers of {what} are not finite; {remedy}")


def check_graph(graph: Any) -> None:
    """Raise unless features and edge attributes are finite and edges refer to nodes of the graph.

    Accepts any kind of graph that `fgai.read` accepts.

    >>> check_graph(Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [5]])))
    Traceback (most recent call last):
    fgai.errors.DataError: edges refer to the nodes 0 to 5, and the graph has the nodes 0 to 1; number nodes from 0
    """
    for store in graph.stores if isinstance(graph, Data | HeteroData) else ():
        for name, value in store.items():
            if isinstance(value, Tensor) and value.is_meta:
                raise DataError(f"`{name}` is on the meta device and has no values; move the graph to a real device")
            if name == "x" and isinstance(value, Tensor) and value.layout not in (torch.strided, torch.sparse_coo):
                raise DataError(f"`x` is {describe_tensor(value)}; give x.to_sparse_coo(), or x.to_dense()")
        for name in ("x", "edge_attr", "edge_weight"):
            if isinstance(value := store.get(name), Tensor):
                check_finite(f"`{name}`", value)
    if isinstance(graph, Data) and isinstance(edges := graph.get("edge_index"), Tensor):
        _check_edges(edges, graph)


def _check_edges(edges: Tensor, graph: Data) -> None:
    if edges.layout != torch.strided:
        return  # a sparse matrix checks its indices itself
    if not is_edge_list(edges):
        raise DataError(
            f"`edge_index` is {describe_tensor(edges)}; give integers of [2, E], sources in the first row and targets "
            "in the second (transpose a list of pairs [E, 2] with .t())"
        )
    x = graph.get("x")
    if isinstance(x, Tensor) and x.dim() == 0:
        raise DataError(f"`x` is {describe_tensor(x)}; give a row of features for each node [N, F]")
    nodes = count_nodes(graph)
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise DataError(
            f"edges refer to the nodes {int(edges.min())} to {int(edges.max())}, and the graph has the nodes 0 to "
            f"{nodes - 1}; number nodes from 0"
        )


def one_graph(data: Any, masks: Sequence[str] | None = None, edges: bool = True) -> Data:
    """Check a homogeneous graph and return it with labels as integers [N]; those of pairs may be in `edge_label`.

    Labels [N, 1] and floats that hold integers are converted, in a copy of the graph. A batch of graphs is returned as
    a `Data` with `batch` and `num_graphs`; a sampled batch, which has `batch_size`, without `batch`.

    Args:
        data: The graph, a PyG `Batch`, or several graphs: a list of `Data` or PyG's `DataLoader`.
        masks: The names of masks to check. Labels are checked and converted unless this is None.
        edges: Require an `edge_index`.

    Returns:
        The graph, or a copy of it with converted labels.

    Raises:
        DataError: The graph, a mask or the labels are not as required.
        NotFiniteError: A feature or an edge attribute is not finite.

    >>> data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([[0.0], [1.0]]))
    >>> one_graph(data, masks=("test_mask",)).y
    tensor([0, 1])
    """
    data = join(data) if isinstance(data, HeteroData) else _collated(data)
    if not isinstance(data, Data):
        raise DataError(f"{type(data).__name__} is not a graph; give a torch_geometric.data.Data, or a list of them")
    if edges and not isinstance(data.get("edge_index"), Tensor):
        sparse = " (its edges are in `adj_t`: remove the transform ToSparseTensor)" if "adj_t" in data else ""
        raise DataError(f"the graph has no `edge_index`, only {sorted(data.keys())}; set it as a tensor [2, E]{sparse}")
    check_graph(data)
    if "batch_size" in data and data.get("batch") is not None:  # sampled; some services write its seed nodes there
        data = copy.copy(data)
        del data.batch
    for name in masks or ():
        if data.get(name) is not None:
            _check_mask(name, data[name], items_of(data))
    if masks is not None and data.get("y") is None and items_of(data).kind == "pairs" and "edge_label" in data:
        data = copy.copy(data)
        data.y = data["edge_label"]
    if masks is None or data.get("y") is None:
        return data
    y = _integer_labels(data["y"], items_of(data))
    if y is not data["y"]:
        data = copy.copy(data)
        data.y = y
    return data


def refuse_sampled(data: Any) -> None:
    """Raise `DataError` for a batch of a neighbour loader: only its seed nodes have all their neighbours."""
    seeds, ids = (data.get(name) if isinstance(data, Data) else None for name in ("batch_size", "n_id"))
    renumbered = isinstance(ids, Tensor) and "e_id" in data and not torch.equal(ids, torch.arange(len(ids)).to(ids))
    around_pairs = isinstance(data, Data) and (renumbered or "num_sampled_nodes" in data)
    if isinstance(seeds, int) or (around_pairs and items_of(data).kind != "graphs"):
        of_seeds = f"{seeds} of its {data.num_nodes} nodes are seed nodes, and the others"
        of_pairs = f"its {data.num_nodes} nodes are some of a larger graph, and most"
        raise DataError(
            f"this is a sampled batch: {of_seeds if isinstance(seeds, int) else of_pairs} lack neighbours, so results "
            "about them would be wrong; give the whole graph, or a loader of seed nodes to fgai.large.audit_batches or "
            "certify_batches"
        )


def _collated(data: Any) -> Any:
    """Return one `Data` for a `Batch`, a list of graphs or a loader of batches; other values as they are."""
    if isinstance(data, DataLoader):
        data = [graph for batch in data for graph in batch.to_data_list()]
    if isinstance(data, list | tuple) and data and all(isinstance(graph, Data) for graph in data):
        data = Batch.from_data_list(list(data))
    return copied(data) if isinstance(data, Batch) and isinstance(data, Data) else data


def expected_rows(graph: Any) -> tuple[int, ...]:
    """Return the accepted numbers of rows of logits: one per item, or one per seed node of a batch."""
    rows = int((graph["node_type"] == 0).sum()) if is_typed(graph) else items_of(graph).count
    return rows, int(graph.get("batch_size") or rows)


def _check_mask(name: str, mask: Any, items: Items) -> None:
    rows = items.count
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise DataError(
            f"`{name}` is {describe_tensor(mask)}, and a mask is booleans [{rows}]; convert 0 and 1 with "
            f"data.{name} = data.{name}.bool(), indices with torch_geometric.utils.index_to_mask(data.{name}, {rows})"
        )
    if mask.dim() != 1:
        raise DataError(
            f"`{name}` is {describe_tensor(mask)}: one column per split; select one, such as "
            f"data.{name} = data.{name}[:, 0]"
        )
    if len(mask) != rows:
        raise DataError(f"`{name}` has {len(mask)} entries, and the graph has {rows} {items.kind}; give one for each")


def _integer_labels(y: Any, items: Items) -> Tensor:
    """Return the labels as integers [N]; the same tensor if it has that form."""
    if not isinstance(y, Tensor):
        raise DataError(f"`y` is {type(y).__name__}; give a tensor with one class per node")
    if y.dim() == 2 and y.size(1) > 1:
        raise DataError(
            f"`y` is {describe_tensor(y)}: several labels per node; fgai needs one class per node: select a "
            "column of `y`, and the same one of the logits, with call=lambda model, data: model(...)[:, [j]]"
        )
    flat = y.flatten() if y.dim() != 1 else y
    if len(flat) != items.count:
        one = "; a graph with one label belongs into a batch, Batch.from_data_list([...])" if len(flat) == 1 else ""
        raise DataError(
            f"`y` has {len(flat)} labels, and the graph has {items.count} {items.kind}; give one for each, -1 for "
            f"none{one}"
        )
    if flat.is_floating_point() and not bool((flat == flat.round()).all()):
        invalid = float(flat[flat != flat.round()][0])
        raise DataError(
            f"`y` holds numbers that are not classes, such as {invalid:g}; fgai does not support regression: give "
            "integers from 0, and -1 where a node has no label"
        )
    return flat if flat.dtype == torch.long else flat.long()


def refuse_cached(model: nn.Module) -> None:
    """Raise `SettingError` if a layer stores what it computed of the links of its first graph.

    >>> from torch_geometric.nn import GCNConv
    >>> refuse_cached(GCNConv(3, 2, cached=False))
    """
    layers = [
        name or "the model itself"
        for name, layer in model.named_modules()
        if getattr(layer, "cached", False) is True
        or any(key.startswith("_cached_") and value is not None for key, value in vars(layer).items())
    ]
    if layers:
        raise SettingError(
            f"{type(model).__name__} stores the normalised links of its first graph (cached=True in "
            f"{', '.join(layers)}) and would not see another one; build it with cached=False and load its state_dict"
        )


def check_labels(y: Tensor, classes: int) -> None:
    """Raise `DataError` unless the labels are among the classes that the model predicts.

    >>> check_labels(torch.tensor([0, 9]), classes=7)
    Traceback (most recent call last):
    fgai.errors.DataError: labels run from 0 to 9, and the model predicts the classes 0 to 6; number classes from 0
    """
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise DataError(
            f"labels run from {int(y.min())} to {int(y.max())}, and the model predicts the classes 0 to "
            f"{classes - 1}; number classes from 0"
        )


def check_logits(logits: Tensor, model: str, rows: Sequence[int] = (), on: str = CLEAN, trained: bool = True) -> None:
    """Raise unless the logits are finite, have one or two dimensions, and are not probabilities.

    Args:
        logits: The output of the model.
        model: The name of the model, for messages.
        rows: The accepted numbers of rows; empty if any number is accepted.
        on: The name of the graph, for messages.
        trained: The model is trained. The logits of an untrained one may all be small and positive.
    """
    shaped = logits.dim() == 1 or (logits.dim() == 2 and logits.size(1) > 0)
    if logits.layout != torch.strided or not shaped or not logits.is_floating_point():
        raise CallError(
            f"{model} returned {describe_tensor(logits)}; fgai needs logits [N, C], floats: define call=..."
        )
    if rows and len(logits) not in rows:
        raise CallError(
            f"{model} returned {len(logits)} rows of logits for a graph of {rows[0]} nodes (or pairs, or graphs of a "
            "batch, by the length of `y` and the masks); fgai needs one row for each: define call=lambda model, data: "
            "... that returns them"
        )
    check_finite(f"the logits of {model} on {on}", logits, UNSTABLE)
    if _are_probabilities(logits.detach()):
        raise CallError(
            f"{model} returned probabilities: rows that are not negative and sum to 1. fgai needs logits, and would "
            "apply the softmax twice; return the input of the softmax, or define "
            "call=lambda model, data: model(data.x, data.edge_index).clamp(min=1e-12).log()"
        )
    if on == CLEAN and logits.numel() == len(logits) and are_sigmoids(logits.detach(), trained):
        raise CallError(
            f"{model} returned {describe_tensor(logits)} with all numbers between 0 and 1, as a sigmoid gives them. "
            "fgai needs logits, and applies its own sigmoid or softmax; return the input of the sigmoid, or define "
            "call=lambda model, data: model(data.x, data.edge_index).clamp(1e-6, 1 - 1e-6).logit()"
        )


def _are_probabilities(logits: Tensor) -> bool:
    if logits.dim() != 2 or logits.size(1) < 2 or len(logits) == 0:
        return False
    return bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < SUM_TOLERANCE).all())


def are_sigmoids(logits: Tensor, trained: bool = True) -> bool:
    """Return whether many logits lie in [0, 1] and differ; of an untrained model, on both sides of 1/2."""
    if len(logits) < MANY_ROWS:
        return False
    low, high = map(float, logits.aminmax())
    return 0 <= low < high <= 1 and (trained or low < 0.5 < high)


def check_attention(attention: Mapping[str, Attention], model: str, on: str = CLEAN) -> None:
    """Raise unless all attention weights are finite and there is at least one."""
    for site, layer in attention.items():
        check_finite(f"the attention of '{site}' in {model} on {on}", layer.weight, UNSTABLE)
    if not attention or not any(len(layer.weight) for layer in attention.values()):
        raise DataError(
            f"{model} attends over no edge of {on}, so there is nothing to explain; give a graph with edges, or layers "
            "that add self-loops"
        )


def describe_tensor(value: Any) -> str:
    """Return the dtype and shape of a tensor, and its layout or device where that is unusual; else the type.

    >>> describe_tensor(torch.zeros(2, 5).long())
    'torch.int64 [2, 5]'
    """
    if not isinstance(value, Tensor):
        return type(value).__name__
    layout = "" if value.layout == torch.strided else f", {value.layout}"
    return f"{value.dtype} {list(value.shape)}{layout}{', on the meta device' if value.is_meta else ''}"


def describe(graph: Any) -> str:
    """Return the names, dtypes and shapes of the tensors of a graph.

    >>> describe(Data(x=torch.ones(2, 1)))
    'x torch.float32 [2, 1]'
    """
    attributes = graph.to_dict().items() if isinstance(graph, Data) else ()
    return ", ".join(f"{name} {describe_tensor(value)}" for name, value in attributes if isinstance(value, Tensor))
