"""Typed graphs: a `HeteroData` as one graph with one numbering of its nodes, and back.

`join` numbers the nodes of the answer's type first, then those of the other types; new nodes follow. An answer is a
node of its type, so row i of the logits belongs to node i. `x` has the width of the widest type, with zeros beyond the
width of the others. `split` makes the `HeteroData` that the model gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from fgai.cache import TensorCache
from fgai.errors import DataError
from fgai.graph import require
from fgai.rows import append_rows, split_rows

EdgeType = tuple[str, str, str]
READ = ("x", "edge_index", "edge_attr")  # of each type; the model gets no other tensors
_CACHE = TensorCache(size=64)


@dataclass(frozen=True)
class Schema:
    """The types of a graph.

    >>> Schema(("a", "b"), (("b", "to", "a"),), (3, 2), (0,), (4, 5)).name(6)
    'b 2'
    """

    node_types: tuple[str, ...]  # that of the answer first
    edge_types: tuple[EdgeType, ...]
    widths: tuple[int, ...]  # features of each node type
    edge_widths: tuple[int, ...]  # features of each edge type, 0 for none
    counts: tuple[int, ...]  # nodes of each type, without added ones

    @property
    def answer(self) -> str:
        """The node type that the model answers for."""
        return self.node_types[0]

    @property
    def num_answers(self) -> int:
        """The number of nodes of that type."""
        return self.counts[0]

    def type_of(self, node: int) -> int:
        """Return the number of the type of a node that was not added."""
        ends = torch.tensor(self.counts).cumsum(0)
        return int(torch.searchsorted(ends, node, right=True))

    def name(self, node: int) -> str:
        """Return the type of a node and its number within the type; `new node` for an added one."""
        if node >= sum(self.counts):
            return f"new node {node - sum(self.counts)}"
        at = self.type_of(node)
        return f"{self.node_types[at]} {node - sum(self.counts[:at])}"

    def relations(self, source: str, target: str, among: Sequence[EdgeType] | None = None) -> list[int]:
        """Return the numbers of the relations from one node type to another."""
        return [
            number
            for number, (first, _, last) in enumerate(self.edge_types)
            if (first, last) == (source, target) and (among is None or self.edge_types[number] in among)
        ]


def is_typed(graph: Any) -> TypeGuard[Data]:
    """Return whether a graph is one that `join` made."""
    return isinstance(graph, Data) and "typed" in graph


def join(data: HeteroData) -> Data:
    """Return a typed graph with one numbering of its nodes, and the labels and masks of the answer's type.

    The answer's type is `data.answer`, or the only node type with labels `y`.

    >>> data = HeteroData(a={"x": torch.ones(2, 1)}, b={"x": torch.ones(3, 2), "y": torch.tensor([0, 1, 1])})
    >>> data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [2, 0]])
    >>> graph = join(data)
    >>> graph.typed.node_types, graph.edge_index.tolist(), graph.x.shape
    (('b', 'a'), [[3, 4], [2, 0]], torch.Size([5, 2]))
    """
    answer = _answer(data)
    if any("batch_size" in store for store in data.node_stores):
        raise DataError("this is a sampled batch of a typed graph, and fgai needs all of it; give the graph itself")
    types = (answer, *(name for name in data.node_types if name != answer))
    rows = [_features(data, name) for name in types]
    counts, widths = tuple(len(x) for x in rows), tuple(x.size(1) for x in rows)
    start = dict(zip(types, torch.tensor((0, *counts)).cumsum(0).tolist(), strict=False))
    relations = tuple(data.edge_types)
    edges, attributes = [], []
    for relation in relations:
        ends, source, target = data[relation].get("edge_index"), relation[0], relation[-1]
        if unknown := {source, target} - set(types):
            raise DataError(f"relation {relation} names nodes of type {sorted(unknown)}, which the graph does not have")
        _check_ends(relation, ends, counts[types.index(source)], counts[types.index(target)])
        edges.append(ends + torch.tensor([[start[source]], [start[target]]], device=ends.device))
        attributes.append(_edge_features(relation, data[relation].get("edge_attr"), ends.size(1)))
    edge_widths = tuple(0 if value is None else value.size(1) for value in attributes)
    schema = Schema(types, relations, widths, edge_widths, counts)
    device = rows[0].device
    graph = Data(x=_stack(rows), edge_index=torch.cat(edges, 1) if edges else torch.empty(2, 0, dtype=torch.long))
    graph.node_type = torch.arange(len(types), device=device).repeat_interleave(torch.tensor(counts, device=device))
    sizes = torch.tensor([ends.size(1) for ends in edges], device=device, dtype=torch.long)
    graph.edge_type = torch.arange(len(relations), device=device).repeat_interleave(sizes)
    if any(edge_widths):
        graph.edge_attr = _stack([
            torch.zeros(ends.size(1), 0, device=device) if value is None else value
            for ends, value in zip(edges, attributes, strict=True)
        ])  # fmt: skip
    _refuse_others(data)
    for name, value in data[answer].items():
        if isinstance(value, Tensor) and (name == "y" or name.endswith("_mask")):
            graph[name] = value
    graph.names = [name for kind, count in zip(types, counts, strict=True) for name in _names(data, kind, count)]
    if "class_names" in data:
        graph.class_names = data["class_names"]
    graph.typed = schema
    return graph


def _refuse_others(data: HeteroData) -> None:
    """Raise `DataError` for floats that the model would not get: weights of links, or further features."""
    for kind, store in (*data.node_items(), *data.edge_items()):
        for name, value in store.items():
            if isinstance(value, Tensor) and value.is_floating_point() and name not in (*READ, "y", "edge_label"):
                raise DataError(
                    f"`{name}` of {kind} would not reach the model: of a typed graph it gets {', '.join(READ)}. Make "
                    f"it a column of `x` or `edge_attr`, or remove it if the model does not read it"
                )


def has_answer(graph: Any) -> TypeGuard[HeteroData]:
    """Return whether a graph is a `HeteroData` that says for which type of nodes the model answers."""
    return isinstance(graph, HeteroData) and (
        "answer" in graph or sum(graph[name].get("y") is not None for name in graph.node_types) == 1
    )


def _answer(data: HeteroData) -> str:
    """Return the node type that the model answers for."""
    labelled = [name for name in data.node_types if data[name].get("y") is not None]
    answer = data["answer"] if "answer" in data else labelled[0] if len(labelled) == 1 else None
    if answer not in data.node_types:
        given = f"`answer` is {answer!r:.40}" if answer is not None else f"{len(labelled)} of them have labels `y`"
        raise DataError(
            f"the graph has {len(data.node_types)} kinds of nodes and {len(data.edge_types)} of edges, and {given}, so "
            "it is not known which nodes the model answers for; set data.answer to the name of their type, or give a "
            "homogeneous graph: data.to_homogeneous()"
        )
    return answer


def _features(data: HeteroData, name: str) -> Tensor:
    x = data[name].get("x")
    first = next((store["x"] for store in data.node_stores if isinstance(store.get("x"), Tensor)), x)
    if not isinstance(x, Tensor) or x.dim() != 2 or x.dtype != first.dtype or x.is_sparse != first.is_sparse:
        raise DataError(
            f"nodes of type '{name}' have no features `x` [N, F] of the dtype and layout of the other types; give "
            "them some, such as an embedding of each node"
        )
    return x


def _check_ends(relation: EdgeType, ends: Any, sources: int, targets: int) -> None:
    """Raise unless the edges of a relation are node numbers inside their types."""
    if not isinstance(ends, Tensor) or ends.dim() != 2 or len(ends) != 2 or ends.dtype != torch.long:
        raise DataError(f"relation {relation} has no `edge_index` [2, E] of integers; set it, and remove `adj_t`")
    for end, count, kind in ((ends[0], sources, relation[0]), (ends[1], targets, relation[-1])):
        if len(end) and not 0 <= int(end.min()) <= int(end.max()) < count:
            raise DataError(
                f"edges of {relation} refer to the nodes {int(end.min())} to {int(end.max())} of type '{kind}', which "
                f"has the nodes 0 to {count - 1}; number the nodes of each type from 0"
            )


def _edge_features(relation: EdgeType, value: Any, edges: int) -> Tensor | None:
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.dim() != 2 or len(value) != edges or not value.is_floating_point():
        raise DataError(f"`edge_attr` of {relation} must be floats [E, D], a row for each of its {edges} edges")
    return value


def _stack(rows: list[Tensor]) -> Tensor:
    """Stack matrices, padded with zeros to the width of the widest."""
    width = max((x.size(1) for x in rows), default=0)
    if rows and rows[0].is_sparse:
        start, indices = 0, []
        rows = [x.coalesce() for x in rows]
        for x in rows:
            indices.append(x.indices() + torch.tensor([[start], [0]], device=x.device))
            start += len(x)
        values = torch.cat([x.values() for x in rows])
        size = (start, width)
        return torch.sparse_coo_tensor(torch.cat(indices, 1), values, size, is_coalesced=True, check_invariants=False)
    return torch.cat([torch.nn.functional.pad(x, (0, width - x.size(1))) for x in rows])


def _names(data: HeteroData, kind: str, count: int) -> list[str]:
    names = data[kind].get("names")
    return [f"{kind} {i}" for i in range(count)] if names is None else [str(name) for name in names]


@dataclass(frozen=True)
class Split:
    """The `HeteroData` of a typed graph, and the number in the typed graph of each node of a type."""

    graph: HeteroData
    ids: dict[str, Tensor]
    schema: Schema


def split(graph: Data) -> Split:
    """Return the graph that the model gets: nodes of each type in the order of their numbers. Gradients reach `x`.

    >>> data = HeteroData(a={"x": torch.ones(2, 1)}, b={"x": torch.ones(3, 2), "y": torch.tensor([0, 1, 1])})
    >>> data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [2, 0]])
    >>> again = split(join(data)).graph
    >>> again["a", "to", "b"].edge_index.tolist(), again["a"].x.shape
    ([[0, 1], [2, 0]], torch.Size([2, 1]))
    """
    schema: Schema = graph["typed"]
    kinds, ends, relations = (require(graph, name) for name in ("node_type", "edge_index", "edge_type"))
    ids, columns, local = _CACHE.get(
        "places", [kinds, ends, relations], lambda: _places(schema, kinds, ends, relations)
    )
    hetero = HeteroData()
    for name, x in zip(schema.node_types, _blocks(schema, require(graph, "x"), ids), strict=True):
        hetero[name].x = x
    attributes = graph.get("edge_attr")
    for number, relation in enumerate(schema.edge_types):
        hetero[relation].edge_index = local[number]
        if width := schema.edge_widths[number]:
            hetero[relation].edge_attr = attributes[columns[number], :width]
    hetero.answer = schema.answer
    return Split(hetero, dict(zip(schema.node_types, ids, strict=True)), schema)


def _places(
    schema: Schema, kinds: Tensor, ends: Tensor, relations: Tensor
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return the nodes of each type, and for each relation its columns and its edges between nodes of their types."""
    ids = [(kinds == number).nonzero().flatten() for number in range(len(schema.node_types))]
    place = places(kinds)
    columns = [(relations == number).nonzero().flatten() for number in range(len(schema.edge_types))]
    return ids, columns, [place[ends[:, column]] for column in columns]


def places(kinds: Tensor) -> Tensor:
    """Return the number of each node within its type; [N].

    >>> places(torch.tensor([0, 0, 1, 0]))
    tensor([0, 1, 0, 2])
    """
    place = torch.zeros_like(kinds)
    for kind in kinds.unique():
        nodes = kinds == kind
        place[nodes] = torch.arange(int(nodes.sum()), device=kinds.device)
    return place


def _blocks(schema: Schema, x: Tensor, ids: list[Tensor]) -> list[Tensor]:
    """Return the features of each type. Rows that were not added are selected once for many attacked graphs."""
    old, new = split_rows(x) or (x, None)
    blocks = []
    for width, nodes in zip(schema.widths, ids, strict=True):
        existing = nodes[nodes < len(old)]
        key = (width, len(existing), int(existing[0]) if len(existing) else -1)
        if len(existing) and int(existing[-1] - existing[0]) + 1 == len(existing) and not old.is_sparse:
            block = old[int(existing[0]) : int(existing[-1]) + 1, :width]
        else:
            block = _CACHE.get(
                key, [old, nodes], lambda existing=existing, width=width: select_rows(old, existing, width)
            )
        if new is not None and len(nodes) > len(existing):
            block = append_rows(block, new[nodes[len(existing) :] - len(old), :width])
        blocks.append(block)
    return blocks


def select_rows(x: Tensor, rows: Tensor, width: int) -> Tensor:
    """Return the first `width` columns of these rows."""
    chosen = x.index_select(0, rows)
    if not x.is_sparse:
        return chosen[:, :width]
    return chosen.index_select(1, torch.arange(width, device=x.device)).coalesce()


def rows_of(graph: Data, nodes: Tensor) -> Tensor:
    """Return the rows of the logits that belong to these nodes: of a typed graph, their places among the answers.

    >>> rows_of(Data(x=torch.ones(3, 1)), torch.tensor([2]))
    tensor([2])
    """
    if not is_typed(graph):
        return nodes
    place = (require(graph, "node_type") == 0).cumsum(0) - 1
    return place[nodes.to(place.device)]
