"""Faithfulness per node, with its noise: delete a node's own edges, most attended first, and compare with chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.attention import nonuniformity
from fgai.errors import DataError, SettingError
from fgai.explanations import Attribution, Explanation, class_logits
from fgai.faithfulness.deletions import Deletions, Incoming, copied_logits, whole_graph_logits
from fgai.faithfulness.record import Faithfulness, HopResult
from fgai.faithfulness.selection import TIE, Ranked, ranked
from fgai.grades import Grade, grade_faithful
from fgai.graph import degree, locate, require, segment_sum
from fgai.intervals import Interval
from fgai.reading import Call, Reader, Reading, eval_mode
from fgai.tap import Tap, message_passing_layers

BATCH = 1_000_000  # edges that are copied beside the graph in one forward pass, at most
CHECKED = 4  # deletions that are also made in the whole graph, to see whether copies give the same
TOLERANCE = 1e-4  # of the largest logit: what rounding may make of it
PATIENCE = 10**9  # edges that all whole-graph passes together may have before they are refused


def measure_faithfulness(
    model: nn.Module,
    data: Data,
    explanation: str | Explanation = "tree",
    *,
    nodes: int | Tensor = 500,
    share: float = 0.5,
    at_least: int = 2,
    draws: int = 1,
    seed: int = 0,
    call: Call | None = None,
) -> Faithfulness:
    """Does the model's answer for a node rest on the edges that an explanation names first?

    Args:
        model: Any model that `fgai.read` can read.
        data: The graph; nodes of `test_mask` are tested, or all.
        explanation: `tree`, `last`, `first`, `layer:NAME` or `leave-one-out`.
        nodes: How many nodes are drawn, or which.
        share: The share of a node's edges that is deleted, within each hop; at most one half.
        at_least: Nodes with fewer incoming edges, self-loops aside, are not tested.
        draws: Random deletions per node and hop; more of them lessen the noise.
        seed: Of the sample, the random deletions, the ties and the bootstrap.
        call: How the model is called, as for `fgai.read`.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> measure_faithfulness(backbones.build("gat", data), data, "last", nodes=30).grade.value
    'unknown'
    """
    if not 0.0 < share <= 0.5:
        raise SettingError(f"share={share}; give more than 0 and at most 0.5, so that most and least differ")
    if at_least < 2 or draws < 1:
        raise SettingError(f"at_least={at_least}, draws={draws}; give at least two edges and one draw")
    read, generator = Reader(model, call), torch.Generator().manual_seed(seed)
    with eval_mode(model):
        with torch.no_grad():
            clean = read(data).detach()
        if len(clean.logits) != int(data.num_nodes or 0):
            raise DataError(
                f"the model answers {len(clean.logits)} times for {data.num_nodes} nodes; faithfulness per node needs "
                "one answer for each"
            )
        found = clean.attribution(explanation, read=read, graph=data)
        probe = _Probe(read, data, clean, found, *_depth(model, clean))
        asked = _sample(found, probe, data, nodes, at_least, generator)
        parts = [_measure(rows, probe, share, draws, generator) for rows in _ranked(found, asked, probe, generator)]
    return _result(found, share, len(asked), parts, _preferring(clean, found), probe.notes, seed)


@dataclass
class _Probe:
    """Asks the model what remains of a node's answer without some edges."""

    read: Reader
    data: Data
    clean: Reading
    found: Attribution
    depth: int
    early: int
    whole: bool | None = None  # each deletion needs the whole graph; not known before the first
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        edges = require(self.data, "edge_index")
        at = locate(edges, self.found.edge_index)
        self.deletable = degree(at[at >= 0], self.found.edge_index.size(1)) > 0
        self.columns = Incoming(torch.stack([at, at])[:, at >= 0], self.found.edge_index.size(1))
        self.original = (at >= 0).nonzero().flatten()
        self.incoming = Incoming(edges, int(self.data.num_nodes or 0))
        self.cost = _cost(self.incoming, edges, self.depth + self.early)

    def drops(self, node: Tensor, group: Tensor, edge: Tensor) -> Tensor:
        """What the log-probability of each node's own answer loses without these edges; `group` is sorted; [G]."""
        owner, at = self.columns.of(edge)
        deletions = Deletions(node, group[owner], self.original[at])
        if self.whole is None:
            self._check(deletions)
        logits = torch.cat([self._logits(part) for part in self._batches(deletions)])
        before = class_logits(self.clean.logits)[node].double().log_softmax(-1)
        answer = before.argmax(-1, keepdim=True)
        return (before - logits.double().log_softmax(-1)).gather(1, answer)[:, 0]

    def _logits(self, deletions: Deletions) -> Tensor:
        if self.whole:
            return whole_graph_logits(self.read, self.data, deletions)
        return copied_logits(self.read, self.data, deletions, self.incoming, self.depth, self.early)

    def _batches(self, deletions: Deletions) -> Iterator[Deletions]:
        part = (self.cost[deletions.node].cumsum(0) / BATCH).long()
        bounds = [0, *part.unique_consecutive(return_counts=True)[1].cumsum(0).tolist()]
        return (deletions.part(first, last) for first, last in pairwise(bounds))

    def _check(self, deletions: Deletions) -> None:
        """Copies must give what deleting in the whole graph gives."""
        few = deletions.part(0, CHECKED)
        truth = whole_graph_logits(self.read, self.data, few)
        scale = float(self.clean.logits.abs().max())
        try:
            copied = copied_logits(self.read, self.data, few, self.incoming, self.depth, self.early)
            self.whole = not bool((copied - truth).abs().max() <= TOLERANCE * max(scale, 1e-6))
        except (RuntimeError, IndexError, ValueError):  # a model that is made for one number of nodes
            self.whole = True
        edges = require(self.data, "edge_index").size(1)
        if self.whole and len(deletions.node) * edges > PATIENCE:
            raise SettingError(
                f"a node's answer depends on more than its {self.depth} hops here, so each of {len(deletions.node)} "
                f"deletions needs a pass over {edges:,} edges; ask for fewer nodes, or for another model"
            )
        if self.whole:
            self.notes = ("an answer depends on more than the node's own hops: each deletion ran on the whole graph",)


@dataclass(frozen=True)
class _Part:
    """Per group (a node and a hop), the three paired differences."""

    node: Tensor  # [G]
    hop: Tensor  # [G]
    differences: Tensor  # [3, G]: necessity, against the least, sufficiency


def _measure(rows: tuple[Tensor, Ranked], probe: _Probe, share: float, draws: int, generator: torch.Generator) -> _Part:
    nodes, groups = rows
    effective_k, size = groups.effective_k(share)[groups.group], groups.size[groups.group]
    node = nodes[groups.node]

    def drop(gone: Tensor) -> Tensor:
        order = groups.group[gone].argsort(stable=True)
        return probe.drops(node, groups.group[gone][order], groups.edge[gone][order])

    most, least = drop(groups.rank < effective_k), drop(groups.rank >= size - effective_k)
    only_most = drop(groups.rank >= effective_k)
    random, only_random = torch.zeros_like(most), torch.zeros_like(most)
    for _ in range(draws):
        shuffled = groups.shuffled(generator)
        random += drop(shuffled < effective_k) / draws
        only_random += drop(shuffled >= effective_k) / draws
    return _Part(node, groups.hop, torch.stack([most - random, most - least, only_random - only_most]))


def _ranked(
    found: Attribution, asked: Tensor, probe: _Probe, generator: torch.Generator
) -> Iterator[tuple[Tensor, Ranked]]:
    for rows in found.chunks(asked):
        groups = ranked(rows, probe.deletable, generator)
        if len(groups.size):
            yield rows.nodes, groups


def _result(
    found: Attribution,
    share: float,
    asked: int,
    parts: list[_Part],
    preferring: bool,
    notes: tuple[str, ...],
    seed: int,
) -> Faithfulness:
    """Sums over the hops of each node; a node counts if the explanation prefers some of its own incoming edges."""
    empty = torch.zeros(0, dtype=torch.long)
    node, hop = (torch.cat([empty, *(getattr(part, name) for part in parts)]) for name in ("node", "hop"))
    differences = torch.cat([torch.zeros(3, 0, dtype=torch.double), *(part.differences for part in parts)], dim=1)
    counted = torch.isin(node, node[hop == 1])
    names, at = node[counted].unique(return_inverse=True)
    sums = segment_sum(differences[:, counted].T, at, len(names)).T
    necessity, least, sufficiency = together = Interval.of_rows(sums.numpy(), seed)
    numbers = hop.unique().tolist()
    hops = tuple(HopResult(n, *Interval.of_rows(differences[:, hop == n].numpy(), seed)) for n in numbers[1:])
    if numbers:  # with one hop the sums are its own
        one = together if len(numbers) == 1 else Interval.of_rows(differences[:, hop == numbers[0]].numpy(), seed)
        hops = (HopResult(numbers[0], *one), *hops)
    grade = grade_faithful(necessity, least, f"'{found.name}'")
    if not preferring:
        grade = Grade("unknown", "Not enough evidence: the attention is uniform and prefers no edge.")
    needed = max(necessity.nodes_needed(), least.nodes_needed())
    return Faithfulness(
        found.name, share, len(names), asked - len(names), necessity, least, sufficiency, hops, grade, needed,
        (*found.notes, *notes),
    )  # fmt: skip


def _sample(
    found: Attribution, probe: _Probe, data: Data, nodes: int | Tensor, at_least: int, generator: torch.Generator
) -> Tensor:
    """The nodes that are tested: those asked for, or as many at random of the test nodes with enough edges."""
    if isinstance(nodes, Tensor):
        return nodes
    real = probe.deletable & (found.edge_index[0] != found.edge_index[1])
    enough = degree(found.edge_index[1][real], found.num_nodes) >= at_least
    mask = data.get("test_mask")
    if isinstance(mask, Tensor) and mask.shape == enough.shape:
        enough &= mask
    chosen = enough.nonzero().flatten()
    return chosen[torch.randperm(len(chosen), generator=generator)[:nodes].to(chosen.device)]


def _preferring(clean: Reading, found: Attribution) -> bool:
    """Some layer prefers some neighbour; explanations that are not attention do not need to."""
    if found.name == "leave-one-out":
        return True
    return any(bool((nonuniformity(attention.mean()) > TIE).any()) for attention in clean.attention.values())


def _depth(model: nn.Module, clean: Reading) -> tuple[int, int]:
    """How many layers exchange messages, and whether some of them weigh messages by degrees instead of attention."""
    layers, attending = message_passing_layers(model), Tap(model).layers
    others = [name for name in layers if not any(site == name or site.startswith(f"{name}.") for site in attending)]
    return max(len(clean.attention) + len(others), len(layers)), int(bool(others))


def _cost(incoming: Incoming, edge_index: Tensor, depth: int) -> Tensor:
    """At most as many edges are copied for one deletion of a node; [N]."""
    own = incoming.count.double()
    cost = own
    for _ in range(depth - 1):
        cost = (own + segment_sum(cost[edge_index[0]], edge_index[1], incoming.num_nodes)).clamp(max=float(BATCH))
    return cost + 1
