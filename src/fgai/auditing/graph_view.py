"""A graph of a batch, such as a molecule, before and after one attack, small enough to be drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.auditing.neighbourhood import round_weight
from fgai.errors import DataError
from fgai.graph import require
from fgai.items import graph_of_nodes, items_of
from fgai.layout import Point, plane_layout
from fgai.printing import short_repr
from fgai.trial import Trial

CHANGED, OTHERS = 12, 4  # graphs in a report: those that changed most, and some of the others
MAX_ATOMS = 60  # nodes of a graph that is drawn
KIND_LENGTH = 40  # characters of the name of an element or a bond
OUTSIDE, CLEAR, DIRECTIONS = 1.2, 0.4, 48  # added atoms: how far out, how far from other atoms, places to try
EXTENT = 1e3  # largest coordinate of a place
Atom = tuple[int, str, float, float, bool]  # node, kind, x, y, whether it is a known reason
Bond = tuple[int, int, float | None, float | None, str, bool]  # source, target, weight before, after, kind, known


@dataclass(frozen=True)
class GraphView:
    """One graph before and after one attack: its nodes with their places, and the weight of each edge.

    The weight of an edge is the sum of its weights for the nodes of the graph. It is None where the graph does not have
    the edge. Nodes with a number of at least the batch's number of nodes are injected. The unit of the places is the
    mean length of an edge.
    """

    graph: int
    seed: int
    label: int | None  # the true class, if it is known
    answer: int  # predicted class before the attack
    answer_attacked: int
    atoms: tuple[Atom, ...]
    bonds: tuple[Bond, ...]  # a row for each direction, and for each self-loop

    __repr__ = short_repr

    def problem(self, size: Mapping[str, int], end: int) -> str:
        """The reason why a loaded view of a batch of this size cannot be drawn, or an empty string.

        Node numbers must be smaller than `end`.
        """
        nodes = [atom[0] for atom in self.atoms]
        kinds = [*(atom[1] for atom in self.atoms), *(bond[4] for bond in self.bonds)]
        tests = {
            "it shows a graph that the batch does not have": not 0 <= self.graph < size.get("graphs", 0),
            "it shows no atom, or one twice": not nodes or len({*nodes}) < len(nodes),
            "a node number is out of range": any(not 0 <= node < end for node in nodes),
            "an atom has no place": any(not abs(at) <= EXTENT for atom in self.atoms for at in atom[2:4]),
            "a bond links atoms that it does not show": any(not {*bond[:2]} <= {*nodes} for bond in self.bonds),
            "an injected atom has a bond before the attack": any(
                bond[2] is not None and max(bond[:2]) >= size.get("nodes", 0) for bond in self.bonds
            ),
            f"the kind of an atom or a bond is longer than {KIND_LENGTH} characters": any(
                len(kind) > KIND_LENGTH for kind in kinds
            ),
        }
        return next((why for why, wrong in tests.items() if wrong), "")


def graph_views(clean: Trial, trials: Sequence[Trial], nodes: Iterable[int], graphs: Iterable[int]) -> list[GraphView]:
    """The views of the graphs whose predictions changed most, of some others, and of the requested ones.

    A graph is shown under the attack that changed its prediction most, by total variation distance.

    Args:
        clean: The trial of the clean batch.
        trials: The trials of the attacked batches.
        nodes: Nodes whose graphs must be shown.
        graphs: Graphs that must be shown.

    Returns:
        Views of graphs with at most `MAX_ATOMS` nodes; none if the model does not answer for graphs, or attends over
        all pairs of nodes.
    """
    batch = items_of(clean.graph).batch
    if batch is None or clean.attribution.over != "edges":
        return []
    batch, own = batch.cpu(), clean.clean.probs
    change = torch.stack([(trial.now.probs - own).abs().sum(1) / 2 for trial in trials]).cpu()
    atoms = batch.bincount(minlength=len(own))
    small = (atoms > 0) & (atoms <= MAX_ATOMS)
    ranked = change.mean(0).argsort(descending=True, stable=True)
    ranked = ranked[(small & clean.eval_mask.cpu())[ranked]].tolist()
    others = ranked[CHANGED:][:: max(1, math.ceil(len(ranked[CHANGED:]) / OTHERS))]
    required = [*batch[torch.tensor([*nodes], dtype=torch.long)].tolist(), *graphs]
    drawable = [graph for graph in required if graph < len(small) and small[graph]]
    shown = dict.fromkeys([*ranked[:CHANGED], *others, *drawable])
    worst = change.argmax(0).tolist()
    before = _Drawn(clean)
    after = {seed: _Drawn(trials[seed]) for seed in sorted({worst[graph] for graph in shown})}
    return [_view(graph, worst[graph], before, after[worst[graph]]) for graph in shown]


class _Drawn:
    """What is drawn of the graphs of one trial: nodes and edges with their kinds, and weights."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.graph, self.batch = trial, trial.graph, graph_of_nodes(trial.graph).cpu()
        self.edges, self.ends = require(self.graph, "edge_index").cpu(), trial.attribution.edge_index.cpu()
        self.weight, self.predictions = trial.attribution.total().cpu(), trial.now.probs.argmax(-1).tolist()

    def atoms(self, number: int) -> dict[int, str]:
        """The nodes of a graph, with their kinds."""
        rows = (self.batch == number).nonzero().flatten()
        return dict(zip(rows.tolist(), _kinds(self.graph, "x", rows, "element_names"), strict=True))

    def bonds(self, number: int) -> dict[tuple[int, int], str]:
        """The edges of a graph, with their kinds."""
        rows = self._of_graph(self.edges, number)
        return dict(zip(_pairs(self.edges, rows), _kinds(self.graph, "edge_attr", rows, "bond_names"), strict=True))

    def weights(self, number: int) -> dict[tuple[int, int], float]:
        """The weights of the edges of a graph; those without attention have the weight 0."""
        rows = self._of_graph(self.ends, number)
        attended = zip(_pairs(self.ends, rows), map(round_weight, self.weight[rows].tolist()), strict=True)
        return {**dict.fromkeys(self.bonds(number), 0.0), **dict(attended)}

    def known_atoms(self, number: int) -> set[int]:
        """The nodes of a graph that are a known reason of its label, if the data has such a mask."""
        rows = (self.batch == number).nonzero().flatten()
        return {*_marked(self.graph.get("node_mask"), rows, len(self.batch)).tolist()}

    def known_bonds(self, number: int) -> set[tuple[int, int]]:
        """The edges of a graph that are a known reason of its label, if the data has such a mask."""
        rows = self._of_graph(self.edges, number)
        return {*_pairs(self.edges, _marked(self.graph.get("edge_mask"), rows, self.edges.size(1)))}

    def _of_graph(self, ends: Tensor, number: int) -> Tensor:
        return (self.batch[ends[1]] == number).nonzero().flatten()


def _view(number: int, seed: int, before: _Drawn, after: _Drawn) -> GraphView:
    atoms, bonds, changed = before.atoms(number), before.bonds(number), after.bonds(number)
    added = {node: kind for node, kind in after.atoms(number).items() if node not in atoms}
    places = _places([*atoms], bonds, [*added], changed)
    old, new = before.weights(number), after.weights(number)
    known_atoms, known_bonds, label = (
        before.known_atoms(number),
        before.known_bonds(number),
        int(before.trial.y[number]),
    )
    return GraphView(
        number,
        seed,
        label if label >= 0 and "y" in before.graph else None,
        before.predictions[number],
        after.predictions[number],
        tuple((node, kind, *places[node], node in known_atoms) for node, kind in {**atoms, **added}.items()),
        tuple(
            (*pair, old.get(pair), new.get(pair), {**changed, **bonds}.get(pair, ""), pair in known_bonds)
            for pair in sorted({*old, *new})
        ),
    )


def _places(
    atoms: list[int], bonds: Iterable[tuple[int, int]], added: list[int], changed: Iterable[tuple[int, int]]
) -> dict[int, Point]:
    """The place of each atom, the molecule wider than high; added atoms are around it."""
    at = {node: place for place, node in enumerate(atoms)}
    pairs = [(at[source], at[target]) for source, target in bonds if source != target]
    places = plane_layout(len(atoms), pairs)
    lengths = [math.dist(places[source], places[target]) for source, target in pairs]
    unit = sum(lengths) / len(lengths) if lengths and sum(lengths) > 0 else 1.0
    low, high = ([pick(place[axis] for place in places) / unit for axis in (0, 1)] for pick in (min, max))
    across, down = (0, 1) if high[0] - low[0] >= high[1] - low[1] else (1, 0)
    size = high[across] - low[across], high[down] - low[down]
    placed = {
        node: (round(place[across] / unit - low[across], 3), round(place[down] / unit - low[down], 3))
        for node, place in zip(atoms, places, strict=True)
    }
    pairs_after = [*changed]
    for node in added:
        linked = [placed[source] for source, target in pairs_after if target == node and source in placed]
        placed[node] = _place_outside(linked, [*placed.values()], size)
    return placed


def _place_outside(linked: Sequence[Point], taken: Sequence[Point], size: Point) -> Point:
    """A place around the molecule whose bonds stay away from the other atoms; of several such, the nearest.

    >>> _place_outside([(1.0, 0.0)], [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0)], (2.0, 0.0))
    (1.0, 1.2)
    """
    best, place = (-math.inf, -math.inf), (0.0, 0.0)
    for step in range(DIRECTIONS):
        angle = 2 * math.pi * (step + DIRECTIONS / 4) / DIRECTIONS  # the first one is below
        reach = [side / 2 + OUTSIDE for side in size]
        one = size[0] / 2 + reach[0] * math.cos(angle), size[1] / 2 + reach[1] * math.sin(angle)
        away = [_distance(other, one, end) for end in linked for other in taken if other != end]
        near = min([*away, *(math.dist(one, other) for other in taken)])
        score = min(near, CLEAR), -round(sum(math.dist(one, end) for end in linked), 3)
        if score > best:
            best, place = score, (round(one[0], 3), round(one[1], 3))
    return place


def _distance(point: Point, start: Point, end: Point) -> float:
    """The distance of a point from a straight line between two others.

    >>> _distance((1.0, 1.0), (0.0, 0.0), (2.0, 0.0)), _distance((3.0, 0.0), (0.0, 0.0), (2.0, 0.0))
    (1.0, 1.0)
    """
    along = end[0] - start[0], end[1] - start[1]
    length = along[0] ** 2 + along[1] ** 2
    share = ((point[0] - start[0]) * along[0] + (point[1] - start[1]) * along[1]) / length if length else 0.0
    share = min(1.0, max(0.0, share))
    return math.dist(point, (start[0] + share * along[0], start[1] + share * along[1]))


def _kinds(data: Data, key: str, rows: Tensor, names: str) -> list[str]:
    """The kind of each row: the column of a one-hot row, or a whole number; empty if the row is neither.

    >>> data = Data(x=torch.tensor([[0.0, 1.0], [0.0, 0.0]]), edge_attr=torch.tensor([7]), element_names=["C", "N"])
    >>> _kinds(data, "x", torch.arange(2), "element_names"), _kinds(data, "edge_attr", torch.arange(1), "bond_names")
    (['N', ''], ['7'])
    """
    values, named = data.get(key), column_names(data, names)
    if not isinstance(values, Tensor) or values.dim() not in (1, 2):
        return [""] * len(rows)
    picked = values.detach().index_select(0, rows.to(values.device)).to_dense().cpu()
    if picked.dim() == 2 and picked.size(1) > 1:
        known, columns = ((picked == 0) | (picked == 1)).all(1) & (picked.sum(1) == 1), picked.argmax(1)
    else:
        known = torch.full((len(rows),), not picked.is_floating_point())
        columns = picked.flatten().long()
    kinds = [named[kind][:KIND_LENGTH] if 0 <= kind < len(named) else str(kind) for kind in columns.tolist()]
    return [kind if is_known else "" for kind, is_known in zip(kinds, known.tolist(), strict=True)]


def column_names(data: Data, key: str) -> list[str]:
    """The names in `data.element_names` or `data.bond_names`; if each graph of a batch holds them, those of the first.

    >>> column_names(Data(bond_names=[["single", "double"], ["single", "double"]]), "bond_names")
    ['single', 'double']
    """
    names = data.get(key)
    if isinstance(names, list | tuple) and names and isinstance(names[0], list | tuple):
        names = names[0]
    if names is not None and (not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names)):
        raise DataError(f"`{key}` is {names!r:.60}; give a list with a name for each column")
    return list(names or ())


def _marked(mask: Any, rows: Tensor, size: int) -> Tensor:
    """Those of the rows that a mask marks; none if it is no mask of this size."""
    if not isinstance(mask, Tensor) or mask.shape != (size,):
        return rows[:0]
    return rows[mask.cpu()[rows] > 0]


def _pairs(ends: Tensor, columns: Tensor) -> list[tuple[int, int]]:
    return [(source, target) for source, target in ends[:, columns].T.tolist()]
