"""Nodes and links that are added to a typed graph: their types and relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.errors import DataError, SettingError
from fgai.graph import require
from fgai.typed import EdgeType, Schema, is_typed, select_rows


@dataclass(frozen=True)
class NewNodes:
    """The type of the nodes that an injection adds, and the relations of their links."""

    schema: Schema
    node_type: str
    relations: tuple[EdgeType, ...]

    @classmethod
    def of(cls, graph: Data, node_type: str | None = None, relations: Sequence[EdgeType] | None = None) -> NewNodes:
        """Return them for a typed graph; without a type, the first one with a relation to the answer's type.

        That is another type than the answer's, if there is one.
        """
        schema: Schema = graph["typed"]
        chosen = tuple(tuple(relation) for relation in (schema.edge_types if relations is None else relations))
        if unknown := [relation for relation in chosen if relation not in schema.edge_types]:
            raise SettingError(f"relations={unknown}, and the graph has {list(schema.edge_types)}; name some of these")
        linked = [first for first, _, last in chosen if last == schema.answer]
        if node_type is None:
            node_type = next((kind for kind in linked if kind != schema.answer), linked[0] if linked else "")
        if node_type not in schema.node_types:
            raise SettingError(
                f"node_type={node_type!r}, and the graph has {list(schema.node_types)}; name one of these that has a "
                "relation to other nodes"
            )
        return cls(schema, node_type, chosen)  # pyright: ignore[reportArgumentType], triples

    def number(self) -> int:
        """Return the number of the type."""
        return self.schema.node_types.index(self.node_type)

    def features(self, graph: Data) -> Data:
        """Return the nodes of this type, with their features only."""
        ids = (require(graph, "node_type") == self.number()).nonzero().flatten()
        return Data(x=select_rows(require(graph, "x"), ids, self.schema.widths[self.number()]))

    def targets(self, graph: Data) -> Tensor:
        """Return the nodes that may be linked to: the answers, or all nodes with a relation if they have none."""
        kinds = {last for first, _, last in self.relations if first == self.node_type}
        kinds |= {first for first, _, last in self.relations if last == self.node_type}
        kinds = {self.schema.answer} & kinds or kinds
        numbers = torch.tensor([self.schema.node_types.index(kind) for kind in sorted(kinds)])
        return torch.isin(require(graph, "node_type").cpu(), numbers).nonzero().flatten()

    def links(self, graph: Data, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the directed links of these pairs along the relations, and the relation of each.

        A pair is linked in each direction for which there is a relation. If there are several, links take turns.
        """
        kinds = require(graph, "node_type").cpu()
        kind = torch.cat([kinds, torch.full((int(pairs.max()) + 1 - len(kinds),), self.number())])
        both = torch.cat([pairs, pairs.flip(0)], dim=1).cpu()
        relation = torch.full_like(both[0], -1)
        for source, first in enumerate(self.schema.node_types):
            for target, last in enumerate(self.schema.node_types):
                at = ((kind[both[0]] == source) & (kind[both[1]] == target)).nonzero().flatten()
                if len(at) and (numbers := self.schema.relations(first, last, self.relations)):
                    relation[at] = torch.tensor(numbers)[torch.arange(len(at)) % len(numbers)]
        if not bool((relation >= 0).any()):
            raise SettingError(
                f"no relation links a new node of type '{self.node_type}' with its targets; the relations are "
                f"{list(self.relations)}"
            )
        return both[:, relation >= 0], relation[relation >= 0]


def added_types(
    data: Data, new: int, edge_index: Tensor, node_type: Tensor | None = None, edge_type: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the types of added nodes and links, for `fgai.graph.add_nodes`; nothing if the graph is not typed.

    Nodes without a type get that of `NewNodes.of`, and links the first relation between the types of their ends.

    Raises:
        DataError: There is no relation between the types of the two ends of a link.
    """
    if not is_typed(data):
        return {}
    schema, kinds = data["typed"], require(data, "node_type")
    if node_type is None:
        node_type = torch.full((new,), NewNodes.of(data).number() if new else 0)
    node_type = node_type.to(kinds)
    if bool(((node_type < 0) | (node_type >= len(schema.node_types))).any()):
        raise DataError(f"new nodes have types up to {int(node_type.max())}, and the graph has {schema.node_types}")
    source, target = torch.cat([kinds, node_type])[edge_index.to(kinds)]
    ends = [[schema.node_types.index(name) for name in (first, last)] for first, _, last in schema.edge_types]
    pairs = torch.tensor(ends, device=kinds.device).reshape(-1, 2)
    fits = (pairs[:, :1] == source) & (pairs[:, 1:] == target)  # [relations, links]
    fits = torch.cat([fits, torch.zeros_like(source, dtype=torch.bool)[None]])  # the last row: no such relation
    edge_type = (fits.long().argmax(0) if edge_type is None else edge_type).to(kinds)
    known = torch.where((edge_type >= 0) & (edge_type < len(pairs)), edge_type, len(pairs))
    wrong = ~fits.gather(0, known[None])[0]
    if bool(wrong.any()):
        first, last = (schema.node_types[int(end[wrong][0])] for end in (source, target))
        raise DataError(
            f"a link from a node of type '{first}' to one of type '{last}' was added, and the graph has no such "
            "relation; attack typed graphs with fgai.TypedInjection()"
        )
    return {"node_type": node_type, "edge_type": edge_type}


def separate_pairs(data: Data, copies: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
    """Return links of new nodes that are linked in pairs only, and their types.

    Of a typed graph, each relation has so many pairs, linked along it; of another graph, there are so many pairs.
    """
    device, nodes = require(data, "edge_index").device, int(data.num_nodes or 0)
    if not is_typed(data):
        first = nodes + 2 * torch.arange(copies, device=device)
        return torch.stack([torch.cat([first, first + 1]), torch.cat([first + 1, first])]), {}
    kinds, relations = data["typed"].node_types, data["typed"].edge_types
    first = nodes + 2 * torch.arange(copies * len(relations))
    ends = torch.tensor([[kinds.index(kind) for kind in (source, target)] for source, _, target in relations])
    types = {
        "node_type": ends.reshape(-1, 2).repeat_interleave(copies, 0).flatten(),
        "edge_type": torch.arange(len(relations)).repeat_interleave(copies),
    }
    return torch.stack([first, first + 1]).to(device), {name: value.to(device) for name, value in types.items()}
