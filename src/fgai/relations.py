"""The attention of a typed graph: the relations of a layer, which run in parallel, joined into one attention.

An edge of relation r into a node i has the weight

    share(r, i) * softmax over the edges of r into i                   HANConv, HeteroConv, `to_hetero`
                  softmax over the edges of all relations into i       HGTConv

HANConv has a share for each relation into a node type, its semantic attention. Elsewhere the relations into a node type
have equal shares: `HeteroConv` and `to_hetero` add up their outputs. The weights of a node sum to one if it has edges
of each relation into its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HANConv, HGTConv

from fgai.attention import Attention, log_weight
from fgai.errors import TapError
from fgai.items import by_id, sort_by_graph
from fgai.recording import Edit, site_name
from fgai.typed import EdgeType, Split, is_typed, split

SEMANTIC = "return_semantic_attention_weights"


def has_semantic_attention(model: nn.Module) -> bool:
    """Return whether a layer computes a mean over all nodes of a type, so that each node depends on all of them."""
    return any(isinstance(layer, HANConv) for layer in model.modules())


@dataclass(frozen=True)
class _RelationAttention:
    """The attention over one relation in one layer."""

    layer: str
    relation: EdgeType
    attention: Attention  # between nodes of the two types
    share: Tensor | None = None  # of the relation; None if it is one of several equal ones
    joint: bool = False  # the softmax is over all relations


@dataclass(frozen=True)
class ModelInput:
    """What the model gets for a graph, whose nodes may have other numbers, and how to number its outputs."""

    graph: Any
    ids: Tensor | None  # the number of each node in the graph

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        """Prepare a call of the model inside a `with` block."""
        yield

    def edit_of_sites(self, edit: Edit) -> Edit:
        """Return the edit for a tap; a tap reads each layer under its own name."""
        return edit

    def logits(self, logits: Tensor) -> Tensor:
        """Return the logits of nodes in the order of their numbers."""
        return by_id(logits, self.ids)

    def attention(self, sites: Mapping[str, Attention]) -> Mapping[str, Attention]:
        """Return the attention that a tap has read, between the numbers of the graph."""
        if self.ids is None:
            return sites
        return {site: a.with_ids(self.ids) for site, a in sites.items()}


def model_input(graph: Any, perturbed: bool = False) -> ModelInput | RelationWatch:
    """Return what the model gets: a batch sorted by graph, a typed graph as a `HeteroData`, other graphs as they are.

    Args:
        graph: Any graph.
        perturbed: The attention is to be perturbed, which is not possible in a typed graph.
    """
    if not is_typed(graph):
        return ModelInput(*sort_by_graph(graph))
    if perturbed:
        raise TapError(
            "the attention of a typed graph is joined from several relations and cannot be perturbed; attack the graph "
            "with fgai.TypedInjection()"
        )
    return RelationWatch(split(graph))


@dataclass
class RelationWatch:
    """The input of a typed graph. It watches the layers that take all relations at once, and joins what a tap has read.

    >>> from torch_geometric.data import HeteroData
    >>> from fgai.reading import read
    >>> data = HeteroData(a={"x": torch.ones(2, 4), "y": torch.tensor([0, 1])}, b={"x": torch.ones(3, 4)})
    >>> data["b", "to", "a"].edge_index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    >>> read(HANConv(4, 2, data.metadata()), data).explanation.edge_index.tolist()
    [[2, 3, 4], [0, 0, 1]]
    """

    split: Split
    calls: dict[str, list[tuple[list[EdgeType], list[Tensor]]]] = field(default_factory=dict)  # relations and edges
    shares: dict[str, list[Mapping[str, Tensor | None]]] = field(default_factory=dict)  # semantic attention of HANConv
    joint: set[str] = field(default_factory=set)  # layers whose softmax is over all relations
    shared: set[str] = field(default_factory=set)  # layers with several names

    @property
    def graph(self) -> HeteroData:
        """What the model gets."""
        return self.split.graph

    def logits(self, logits: Tensor) -> Tensor:
        """Return the logits, which are in the order of the answers."""
        return logits

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        """Watch the calls of HANConv and HGTConv inside a `with` block."""
        first: dict[nn.Module, str] = {}  # the name of each layer
        with ExitStack() as undo:
            for name, layer in model.named_modules(remove_duplicate=False):
                if layer in first:
                    self.shared.add(first[layer])
                    continue
                first[layer] = name
                if isinstance(layer, HGTConv):
                    self.joint.add(name)
                if isinstance(layer, HANConv | HGTConv):
                    before = layer.register_forward_pre_hook(self._before(name), with_kwargs=True)
                    undo.callback(before.remove)
                if isinstance(layer, HANConv):
                    undo.callback(layer.register_forward_hook(self._after(name), with_kwargs=True).remove)
            yield

    def _before(self, name: str) -> Any:
        def note(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            edges = named["edge_index_dict"] if "edge_index_dict" in named else args[1]
            self.calls.setdefault(name, []).append((list(edges), list(edges.values())))
            if not isinstance(layer, HANConv):
                return None
            asked = args[2] if len(args) > 2 else named.get(SEMANTIC, False)
            return args[:2], {**named, SEMANTIC: True if asked else _Asked()}

        return note

    def _after(self, name: str) -> Any:
        def take(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
            answer, shares = output
            self.shares.setdefault(name, []).append(shares)
            return answer if isinstance(named.get(SEMANTIC), _Asked) else output

        return take

    def attention(self, sites: Mapping[str, Attention]) -> dict[str, Attention]:
        """Return the attention of each layer on the numbers of the typed graph, from what a tap has read by site."""
        layers: dict[str, list[_RelationAttention]] = {}
        for part in self._parts(sites):
            layers.setdefault(part.layer, []).append(part)
        attention = {layer: self._join(parts) for layer, parts in layers.items()}
        if not attention:
            return attention
        last = next(reversed(attention))  # only the answers of the last layer have an effect
        return {**attention, last: attention[last].head(self.split.schema.num_answers)}

    def edit_of_sites(self, edit: Edit) -> Edit:
        """Return the edit for a tap, which reads each relation by itself, from one that knows the joined layers."""
        runs = _Runs()

        def edit_site(site: str, attention: Attention) -> Tensor:
            layer, run, _ = self._place(site, attention, runs)
            return edit(site_name(layer, run), attention)

        return edit_site

    def _parts(self, sites: Mapping[str, Attention]) -> Iterator[_RelationAttention]:
        """Yield the attention over single relations, in the order of execution."""
        runs = _Runs()
        for site, attention in sites.items():
            layer, run, relation = self._place(site, attention, runs)
            if relation is None:
                yield from self._of_all_relations(layer, run, attention)
            else:
                yield _RelationAttention(site_name(layer, run), relation, attention, self._share(layer, run, relation))

    def _place(self, site: str, attention: Attention, runs: _Runs) -> tuple[str, int, EdgeType | None]:
        """Return the layer of a call of the softmax, the run of the layer, and the relation; None if it is over all."""
        name, _, number = site.rpartition("@")
        name, call = (name, int(number)) if number.isdigit() and "@" in site else (site, 0)
        if name in self.joint:
            return name, call, None
        if name in self.calls:
            for run, (relations, _) in enumerate(self.calls[name]):
                if call < len(relations):
                    return name, run, relations[call]
                call -= len(relations)
        layer = name.rpartition(".")[0].removesuffix(".convs")
        relation = self._relation(name, attention, runs.current.get(layer, []))
        return layer, runs.number(layer, relation), relation

    def _share(self, layer: str, run: int, relation: EdgeType) -> Tensor | None:
        """Return the semantic attention of a relation in HANConv; None elsewhere."""
        shares = self.shares[layer][run][relation[-1]] if layer in self.shares else None
        if shares is None:
            return None
        relations, _ = self.calls[layer][run]
        return shares[[other for other in relations if other[-1] == relation[-1]].index(relation)]

    def _of_all_relations(self, layer: str, run: int, attention: Attention) -> Iterator[_RelationAttention]:
        """Yield the relations of a softmax over all of them, as in HGTConv."""
        relations, edges = self.calls[layer][run]
        sizes = [ends.size(1) for ends in edges]
        assert attention.score is not None, "attention that was read has scores"
        parts = zip(relations, edges, attention.weight.split(sizes), attention.score.split(sizes), strict=True)
        for relation, ends, weight, score in parts:
            part = Attention(weight, ends, attention.num_targets, score)
            yield _RelationAttention(site_name(layer, run), relation, part, joint=True)

    def _relation(self, name: str, attention: Attention, taken: Sequence[EdgeType]) -> EdgeType:
        """Return the relation of a layer: by its name, as in HeteroConv and `to_hetero`, or by its edges.

        The name of a layer that several relations share says nothing. Of relations with the same edges between the same
        types, each is used once in a run; `taken` are those of this run.
        """
        own = name.rpartition(".")[2]
        relations = self.split.schema.edge_types
        for relation in relations if name not in self.shared else ():
            if own in (f"<{'___'.join(relation)}>".replace(".", "#"), "__".join(relation)):
                return relation
        read = _without_loops(attention.edge_index)
        matching = [
            relation
            for relation in relations
            if torch.equal(_without_loops(self.split.graph[relation].edge_index), read)
            and len(self.split.ids[relation[-1]]) == attention.num_targets
        ]
        matching = [relation for relation in matching if relation not in taken] or matching
        if len({(relation[0], relation[-1]) for relation in matching}) != 1:
            raise TapError(
                f"layer '{name}' attends over edges of this typed graph, and neither its name nor its edges say of "
                f"which relation; keep the layers of the relations in a HeteroConv, or in a ModuleDict under names "
                f"such as '{'__'.join(relations[0]) if relations else 'a__to__b'}'"
            )
        return matching[0]

    def _join(self, parts: list[_RelationAttention]) -> Attention:
        """Return the attention of all relations of a layer."""
        heads = {part.attention.heads for part in parts if len(part.attention.weight)}
        into = [part.relation[-1] for part in parts]
        weights, scores, ends = [], [], []
        for part in parts:
            attention = part.attention if len(heads) == 1 else part.attention.mean_heads()
            if len(attention.weight) == 0:
                continue
            weight, score = attention.weight, attention.score
            if not part.joint:
                equal = weight.new_tensor(1 / into.count(part.relation[-1]))
                share = equal if part.share is None else part.share
                weight, score = share * weight, log_weight(attention) + share.clamp(min=1e-30).log()
            assert score is not None, "attention that was read has scores"
            weights.append(weight)
            scores.append(score)
            source, target = (self.split.ids[kind] for kind in (part.relation[0], part.relation[-1]))
            ends.append(torch.stack([source[attention.source], target[attention.target]]))
        nodes = sum(len(ids) for ids in self.split.ids.values())
        if not weights:
            ids = next(iter(self.split.ids.values()))
            empty = torch.empty(0, 1, device=ids.device)
            return Attention(empty, ids.new_empty(2, 0), nodes, empty)
        return Attention(torch.cat(weights), torch.cat(ends, 1), nodes, torch.cat(scores))


@dataclass
class _Runs:
    """The runs of layers, found by their calls in the order of execution: a relation comes once in a run."""

    current: dict[str, list[EdgeType]] = field(default_factory=dict)  # relations of the current run of a layer
    count: dict[str, int] = field(default_factory=dict)

    def number(self, layer: str, relation: EdgeType) -> int:
        """Return the run of a layer that its next call, for this relation, belongs to."""
        if relation in self.current.setdefault(layer, []):
            self.current[layer], self.count[layer] = [], self.count.get(layer, 0) + 1
        self.current[layer].append(relation)
        return self.count.get(layer, 0)


def _without_loops(edge_index: Tensor) -> Tensor:
    return edge_index[:, edge_index[0] != edge_index[1]]


class _Asked(int):
    """A true value that marks the argument as ours, not the caller's."""

    def __new__(cls) -> _Asked:
        """Return the value 1."""
        return super().__new__(cls, 1)
