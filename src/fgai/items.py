"""Items: what a model answers for, one row of logits each. Nodes, pairs of nodes, or the graphs of a batch.

Of a typed graph (`fgai.typed`), the items are the nodes of the answer's type, which come first.

A batch of graphs is a PyG `Batch`, or a `Data` with `batch` [N], the graph of each node. Its graphs have no edge in
common, so one pass computes them all. Added nodes come last; `sort_by_graph` moves them to their graph for the model.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from fgai.adjacency import adjacencies_of
from fgai.cache import TensorCache
from fgai.errors import DataError

Kind = Literal["nodes", "pairs", "graphs"]
LABELS = ("y", "train_mask", "val_mask", "test_mask")  # they have a row per item
SPECIAL = ("edge_index", "ptr")  # neither of nodes nor of edges, whatever their size
_ORDERS = TensorCache(size=64)


@dataclass(frozen=True)
class Items:
    """The items of one graph or batch.

    >>> items_of(Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [1]])))
    Items('nodes', 3)
    """

    kind: Kind
    count: int
    batch: Tensor | None = None  # [N], the graph of each node, if the items are graphs
    typed: Any = None  # the `fgai.typed.Schema` of a typed graph

    def __repr__(self) -> str:
        return f"Items({self.kind!r}, {self.count})"


def items_of(data: Data, rows: int | None = None) -> Items:
    """Return the items of a graph.

    With `edge_label_index` they are pairs. In a batch they are graphs if the logits, `y` or the masks have a row per
    graph; if there is none of these, the items of a PyG `Batch` are graphs.

    Args:
        data: The graph.
        rows: The number of rows of logits, if it is known.

    Returns:
        Their kind and number.

    >>> two = Batch.from_data_list([Data(x=torch.ones(n, 1), y=torch.tensor([0])) for n in (2, 3)])
    >>> items_of(two), items_of(two, rows=5)
    (Items('graphs', 2), Items('nodes', 5))
    """
    if "typed" in data:
        return Items("nodes", data["typed"].num_answers, typed=data["typed"])
    pairs, x, batch = data.get("edge_label_index"), data.get("x"), data.get("batch")
    if isinstance(pairs, Tensor):
        return Items("pairs", pairs.size(1))
    nodes = x.size(0) if isinstance(x, Tensor) and x.dim() else int(data.num_nodes or 0)
    if isinstance(batch, Tensor) and batch.shape == (nodes,):
        graphs = num_graphs(data)
        if _are_graphs(data, nodes, graphs, rows):
            return Items("graphs", graphs, batch)
    return Items("nodes", nodes)


def _are_graphs(data: Data, nodes: int, graphs: int, rows: int | None) -> bool:
    labels = [data.get(name) for name in LABELS]
    sizes = [rows] if rows is not None else [len(v) for v in labels if isinstance(v, Tensor) and v.dim()]
    if nodes in sizes or graphs == nodes:
        return False
    return graphs in sizes or (not sizes and (isinstance(data, Batch) or "num_graphs" in data))


def has_graphs(data: Data) -> bool:
    """Return whether the data is a batch of graphs, which no edge may link, whatever its items are.

    >>> data = Data(x=torch.ones(2, 1), y=torch.zeros(2))
    >>> has_graphs(Batch.from_data_list([data])), has_graphs(data)
    (True, False)
    """
    return isinstance(data, Batch) or "num_graphs" in data or items_of(data).kind == "graphs"


def num_graphs(data: Data) -> int:
    """Return the number of graphs of a batch.

    >>> num_graphs(Data(batch=torch.tensor([0, 0, 1])))
    2
    """
    if isinstance(data, Batch):
        return int(data.num_graphs)
    if "num_graphs" in data:
        return int(data["num_graphs"])
    batch = data["batch"]
    return int(batch.max()) + 1 if batch.numel() else 0


def graph_of_nodes(data: Data) -> Tensor:
    """Return the graph of each node, [N]: `batch`, or zeros if there is none.

    >>> graph_of_nodes(Data(x=torch.ones(2, 1)))
    tensor([0, 0])
    """
    batch, x = data.get("batch"), data.get("x")
    nodes = x.size(0) if isinstance(x, Tensor) and x.dim() else int(data.num_nodes or 0)
    if isinstance(batch, Tensor) and batch.shape == (nodes,):
        return batch
    return torch.zeros(nodes, dtype=torch.long, device=x.device if isinstance(x, Tensor) else None)


def copied(data: Data) -> Data:
    """Return a shallow copy. That of a `Batch` is a `Data` with `num_graphs`: PyG cannot split a changed batch.

    >>> copied(Batch.from_data_list([Data(x=torch.ones(2, 1))]))
    Data(x=[2, 1], batch=[2], ptr=[2], num_graphs=1)
    """
    if not isinstance(data, Batch):
        return copy.copy(data)
    return Data.from_dict({**data.to_dict(), "num_graphs": num_graphs(data)})


def select_graphs(data: Data, mask: Tensor) -> Data:
    """Return the batch of the graphs in the mask [G]; they are numbered again from 0.

    >>> two = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[1], [2]]), y=torch.tensor([4, 5]))
    >>> two.batch = torch.tensor([0, 1, 1])
    >>> one = select_graphs(two, torch.tensor([False, True]))
    >>> one.edge_index.flatten(), one.batch, one.y
    (tensor([0, 1]), tensor([0, 0]), tensor([5]))
    """
    items = items_of(data)
    assert items.batch is not None, "only graphs can be selected"
    part = copied(data).subgraph(mask[items.batch])
    for name in graph_attributes(data, items.count):
        part[name] = data[name].index_select(0, mask.nonzero().flatten())
    part.batch = (mask.cumsum(0) - 1)[items.batch[mask[items.batch]]]
    part.num_graphs = int(mask.sum())
    if "ptr" in data:
        part.ptr = torch.cat([data["ptr"][:1], torch.bincount(part.batch, minlength=part.num_graphs).cumsum(0)])
    return part


def graph_attributes(data: Data, count: int) -> list[str]:
    """Return the names of the tensors with a row for each graph of a batch, such as `y` and features of graphs.

    Args:
        data: A batch of graphs.
        count: The number of graphs.

    Raises:
        DataError: The shape of a tensor does not tell whether it belongs to the graphs.

    >>> two = Batch.from_data_list([Data(x=torch.ones(n, 1), u=torch.ones(1, 4)) for n in (2, 3)])
    >>> graph_attributes(two, 2)
    ['u']
    """
    names, excluded = [], (*SPECIAL, "batch", *adjacencies_of(data))
    for name, value in data.to_dict().items():
        if not isinstance(value, Tensor) or not value.dim() or name in excluded:
            continue
        rows, of_parts = value.size(0), data.is_node_attr(name) or data.is_edge_attr(name)
        joined_along = data.__cat_dim__(name, value)
        ids = isinstance(joined_along, int) and joined_along % value.dim() != 0
        if rows == count and not ids and (name in LABELS or not of_parts):
            names.append(name)
        elif ids or (rows == count and "edge" not in name) or (rows > count > 1 and rows % count == 0 and not of_parts):
            raise DataError(
                f"`{name}` is {list(value.shape)} in a batch of {count} graphs with {data.num_nodes} nodes and "
                f"{data.num_edges} edges, which does not tell its part for each graph; give features of graphs as "
                f"[1, ...] per graph, remove `{name}`, or train on the batches of a DataLoader"
            )
    return names


def refuse_graphs(data: Data, what: str, remedy: str, most: int = 0) -> None:
    """Raise `DataError` if the items are more than `most` graphs, or the nodes are typed.

    It is for functions that serve only nodes and pairs of a homogeneous graph.

    >>> refuse_graphs(Data(x=torch.ones(2, 1), batch=torch.tensor([0, 0]), num_graphs=1), "This proof", "use audit")
    Traceback (most recent call last):
    fgai.errors.DataError: This proof is for models that answer for nodes, and this is a batch of 1 graphs; use audit
    """
    refuse_typed(data, what)
    items = items_of(data)
    if items.kind == "graphs" and items.count > most:
        raise DataError(
            f"{what} is for models that answer for nodes, and this is a batch of {items.count} graphs; {remedy}"
        )


def refuse_typed(data: Any, what: str, remedy: str = "the page on typed graphs lists what works for them") -> None:
    """Raise `DataError` if the graph has several types of nodes, as a `HeteroData` or joined into one graph."""
    if isinstance(data, HeteroData) or (isinstance(data, Data) and "typed" in data):
        types = data.node_types if isinstance(data, HeteroData) else data["typed"].node_types
        raise DataError(f"{what} is for graphs with one type of nodes, and this one has {list(types)}; {remedy}")


def extend_batch(batch: Tensor, new: int, edge_index: Tensor, separate: bool) -> Tensor:
    """Return the graph of each node after `new` nodes and these edges are added; a new node is in the graph of a link.

    Args:
        batch: The graph of each old node, [N].
        new: The number of new nodes, with the ids N, N + 1, ...
        edge_index: The added edges, [2, A].
        separate: Raise `DataError` if an edge links two graphs, or a new node none.

    >>> extend_batch(torch.tensor([0, 0, 1]), 1, torch.tensor([[3, 2], [2, 3]]), separate=True)
    tensor([0, 0, 1, 1])
    """
    old, ends = len(batch), edge_index.to(batch.device)
    known = torch.cat([batch, batch.new_full((new,), -1)])
    for one, other in (ends, ends.flip(0)):
        links = (one >= old) & (other < old)
        known[one[links]] = batch[other[links]]
    lost, across = known < 0, known[ends[0]] != known[ends[1]]
    if separate and bool(lost.any() or across.any()):
        which = f"node {int(lost.nonzero()[0])} to none" if lost.any() else f"{ends[:, across][:, 0].tolist()} to two"
        raise DataError(
            f"added edges must stay inside one graph of the batch, and they link {which}; attack with "
            "fgai.GraphInjection(), or with a perturbation whose links stay inside a graph"
        )
    return known.clamp(min=0)


def sort_by_graph(data: Any) -> tuple[Any, Tensor | None]:
    """Return a batch with the nodes of each graph side by side, as PyG's dense layers need it.

    Args:
        data: Any graph.

    Returns:
        The sorted batch and, for each of its nodes, the id in `data`, [N]; the same graph and None if it is no batch,
        or is sorted.

    >>> data = Data(x=torch.tensor([[7.0], [8.0], [9.0]]), edge_index=torch.tensor([[2], [0]]))
    >>> data.batch = torch.tensor([0, 1, 0])
    >>> moved, ids = sort_by_graph(data)
    >>> moved.x.flatten(), moved.edge_index.flatten(), ids
    (tensor([7., 9., 8.]), tensor([1, 0]), tensor([0, 2, 1]))
    """
    batch = data.get("batch") if isinstance(data, Data) else None
    edges = None if batch is None else data.get("edge_index")
    if not isinstance(batch, Tensor) or not isinstance(edges, Tensor) or edges.layout != torch.strided:
        return data, None
    order, ends = _ORDERS.get("order", [batch, edges], lambda: _order(batch, edges))
    if order is None:
        return data, None
    moved = copied(data)
    adjacencies = adjacencies_of(data)
    for name in adjacencies:
        moved[name] = data[name].to_sparse_coo().index_select(0, order).index_select(1, order).coalesce()
    for name, value in data.to_dict().items():
        if isinstance(value, Tensor) and name not in (*SPECIAL, *adjacencies) and data.is_node_attr(name):
            moved[name] = (value.to_dense() if value.is_sparse else value).index_select(0, order)
    moved.edge_index = ends
    return moved, order


def by_id(logits: Tensor, ids: Tensor | None) -> Tensor:
    """Return the logits of the nodes of a sorted batch in the order of their ids; those of other items as they are.

    >>> by_id(torch.tensor([7.0, 9.0, 8.0]), torch.tensor([0, 2, 1]))
    tensor([7., 8., 9.])
    """
    return logits if ids is None or len(logits) != len(ids) else logits[ids.argsort()]


def _order(batch: Tensor, edges: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the nodes sorted by graph, and the edges between their new positions; None if they are sorted."""
    if bool((batch.diff() >= 0).all()):
        return None, None
    order = batch.argsort(stable=True)
    return order, order.argsort()[edges]
