"""What a graph, a model's answers and its attention must be before anything is measured: the one door of every call.

A check costs one pass over the tensors. Public functions check a graph once, the clean reading and the final attacked
one; nothing is checked in the steps between. What another kind of graph needs is added here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from fgai.attention import Attention
from fgai.errors import CallError, DataError, NotFiniteError

SUMS_TO_ONE = 1e-3  # how far from 1 the rows of probabilities may add up, also in half precision
CLEAN = "the clean graph"


def check_finite(what: str, value: Tensor, remedy: str = "replace or leave out what is not a number") -> None:
    """Every number is finite; sparse tensors by their stored values.

    >>> check_finite("`x`", torch.tensor([1.0, torch.nan]))
    Traceback (most recent call last):
    fgai.errors.NotFiniteError: 1 of 2 numbers of `x` are not finite; replace or leave out what is not a number
    """
    value = value.detach()
    value = value.coalesce().values() if value.layout == torch.sparse_coo else value
    if value.layout != torch.strided or not value.is_floating_point() or value.numel() == 0:
        return
    if not bool(torch.stack(value.aminmax()).isfinite().all()):  # NaN goes through, and nothing is allocated
        wrong = int((~value.isfinite()).sum())
        raise NotFiniteError(f"{wrong} of {value.numel()} numbers of {what} are not finite; {remedy}")


def check_graph(graph: Any) -> None:
    """Features and edge attributes are finite, edges lie within the graph; of any kind of graph that can be read.

    >>> check_graph(Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [5]])))
    Traceback (most recent call last):
    fgai.errors.DataError: edges name the nodes 0 to 5, and the graph has the nodes 0 to 1; number nodes from 0
    """
    for store in graph.stores if isinstance(graph, Data | HeteroData) else ():
        for name, value in store.items():
            if isinstance(value, Tensor) and value.is_meta:
                raise DataError(f"`{name}` is on the meta device and has no values; move the graph to a real device")
        for name in ("x", "edge_attr", "edge_weight"):
            if isinstance(value := store.get(name), Tensor):
                check_finite(f"`{name}`", value)
    if isinstance(graph, Data) and isinstance(edges := graph.get("edge_index"), Tensor):
        _check_edges(edges, graph)


def _check_edges(edges: Tensor, graph: Data) -> None:
    if edges.layout != torch.strided:
        return  # a sparse matrix holds its own size
    if edges.dim() != 2 or edges.size(0) != 2 or edges.dtype not in (torch.int32, torch.int64):
        raise DataError(
            f"`edge_index` is {described_tensor(edges)}; give integers [2, E], sources above targets (a list of pairs [E, 2] "
            "is turned by .t())"
        )
    x = graph.get("x")
    nodes = x.size(0) if isinstance(x, Tensor) else int(graph.num_nodes or 0)
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise DataError(
            f"edges name the nodes {int(edges.min())} to {int(edges.max())}, and the graph has the nodes 0 to "
            f"{nodes - 1}; number nodes from 0"
        )


def one_graph(data: Any, masks: Sequence[str] = (), edges: bool = True) -> Data:
    """A graph with one kind of nodes and edges, checked; its labels as integers [N] and these masks as they must be.

    Labels [N, 1] and floats that hold whole numbers are taken as integers [N], in a copy; the given graph stays.

    >>> data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([[0.0], [1.0]]))
    >>> one_graph(data, masks=("test_mask",)).y
    tensor([0, 1])
    """
    if isinstance(data, HeteroData):
        raise DataError(
            f"the graph has {len(data.node_types)} kinds of nodes and {len(data.edge_types)} of edges; fgai.read reads "
            "attention on it, and everything else takes graphs of one kind: data.to_homogeneous()"
        )
    if not isinstance(data, Data):
        raise DataError(f"{type(data).__name__} is no graph; give a torch_geometric.data.Data")
    if edges and not isinstance(data.get("edge_index"), Tensor):
        sparse = " (its edges are in `adj_t`: leave out the transform ToSparseTensor)" if "adj_t" in data else ""
        raise DataError(f"the graph has no `edge_index`, only {sorted(data.keys())}; set it as a tensor [2, E]{sparse}")
    check_graph(data)
    for name in masks:
        if data.get(name) is not None:
            _check_mask(name, data[name], rows_of(data))
    if not masks or data.get("y") is None:
        return data
    y = _labels(data["y"], rows_of(data))
    if y is not data["y"]:
        data = copy.copy(data)
        data.y = y
    return data


def rows_of(data: Data) -> int:
    """How many answers a model owes: one for each node, or for each pair where links are predicted."""
    pairs, x = data.get("edge_label_index"), data.get("x")
    if isinstance(pairs, Tensor):
        return pairs.size(1)
    return x.size(0) if isinstance(x, Tensor) else int(data.num_nodes or 0)


def _check_mask(name: str, mask: Any, rows: int) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise DataError(
            f"`{name}` is {described_tensor(mask)}, and a mask is booleans [{rows}]; numbers 0 and 1 become one by "
            f"data.{name} = data.{name}.bool(), indices by torch_geometric.utils.index_to_mask(data.{name}, {rows})"
        )
    if mask.dim() != 1:
        raise DataError(
            f"`{name}` is {described_tensor(mask)}: a column for each of several splits; choose one, such as "
            f"data.{name} = data.{name}[:, 0]"
        )
    if len(mask) != rows:
        raise DataError(f"`{name}` has {len(mask)} entries, and the graph has {rows} to judge; give one for each")


def _labels(y: Any, rows: int) -> Tensor:
    """Integers [N]; the very tensor where it is that already."""
    if not isinstance(y, Tensor):
        raise DataError(f"`y` is {type(y).__name__}; give a tensor of a class per node")
    if y.dim() == 2 and y.size(1) > 1:
        raise DataError(
            f"`y` is {described_tensor(y)}: several labels per node; fgai needs one class per node, so choose a column "
            "or leave `y` out: the model's own predictions are then the labels"
        )
    flat = y.flatten() if y.dim() != 1 else y
    if len(flat) != rows:
        raise DataError(
            f"`y` has {len(flat)} labels, and the graph has {rows} to judge; give one for each, -1 for none"
        )
    if flat.is_floating_point() and not bool((flat == flat.round()).all()):
        odd = float(flat[flat != flat.round()][0])
        raise DataError(
            f"`y` holds numbers that are no classes, such as {odd:g}; fgai judges classes, not regression: give whole "
            "numbers from 0, and -1 where a node has no label"
        )
    return flat if flat.dtype == torch.long else flat.long()


def check_labels(y: Tensor, classes: int) -> None:
    """The labels of the nodes that are scored or learnt from lie within the classes that the model answers for.

    >>> check_labels(torch.tensor([0, 9]), classes=7)
    Traceback (most recent call last):
    fgai.errors.DataError: labels run from 0 to 9, and the model answers for the classes 0 to 6; number classes from 0
    """
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise DataError(
            f"labels run from {int(y.min())} to {int(y.max())}, and the model answers for the classes 0 to "
            f"{classes - 1}; number classes from 0"
        )


def check_answers(logits: Tensor, model: str, rows: Sequence[int] = (), on: str = CLEAN) -> None:
    """Logits: finite, of one or two dimensions, as many as are owed (`rows`), and not probabilities."""
    if logits.layout != torch.strided or logits.dim() not in (1, 2) or not logits.is_floating_point():
        raise CallError(f"{model} returned {described_tensor(logits)}; fgai needs logits [N, C], floats: give call=...")
    if rows and len(logits) not in rows:
        raise CallError(
            f"{model} gave {len(logits)} answers on a graph of {rows[0]} nodes (or pairs); fgai judges an answer per "
            "node or pair, not per graph: give call=lambda model, data: ... that returns one for each"
        )
    remedy = "look at the model's weights, and at features that are far too large"
    check_finite(f"{model}'s answers on {on}", logits, remedy)
    if _are_probabilities(logits.detach()):
        raise CallError(
            f"{model} returned probabilities: rows that are not negative and add up to 1. fgai takes logits, and would "
            "take the softmax twice; return what goes into the softmax, or give "
            "call=lambda model, data: model(data.x, data.edge_index).clamp(min=1e-12).log()"
        )


def _are_probabilities(logits: Tensor) -> bool:
    if logits.dim() != 2 or logits.size(1) < 2 or len(logits) == 0:
        return False
    return bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < SUMS_TO_ONE).all())


def check_attention(attention: Mapping[str, Attention], model: str, on: str = CLEAN) -> None:
    """Every weight is finite, and there is at least one."""
    remedy = "look at the model's weights, and at features that are far too large"
    for site, look in attention.items():
        check_finite(f"the attention of '{site}' in {model} on {on}", look.weight, remedy)
    if not attention or not any(len(look.weight) for look in attention.values()):
        raise DataError(
            f"{model} attends over no edge of {on}, so there is nothing to explain; give a graph with edges, or layers "
            "that add self-loops"
        )


def described_tensor(value: Any) -> str:
    """The type and shape of a tensor, and its layout or device where that is unusual.

    >>> described_tensor(torch.zeros(2, 5).long())
    'torch.int64 [2, 5]'
    """
    if not isinstance(value, Tensor):
        return type(value).__name__
    layout = "" if value.layout == torch.strided else f", {value.layout}"
    return f"{value.dtype} {list(value.shape)}{layout}{', on the meta device' if value.is_meta else ''}"


def described(graph: Any) -> str:
    """The tensors of a graph, with their types and shapes.

    >>> described(Data(x=torch.ones(2, 1)))
    'x torch.float32 [2, 1]'
    """
    held = graph.to_dict().items() if isinstance(graph, Data) else ()
    return ", ".join(f"{name} {described_tensor(value)}" for name, value in held if isinstance(value, Tensor))
