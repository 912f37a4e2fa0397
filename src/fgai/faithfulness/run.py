"""Faithfulness per node: delete the most attended edges of each node, and compare with random deletions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.attending import attention_layers
from fgai.attention import explaining_sites, nonuniformity
from fgai.calling import Call
from fgai.checks import GraphInput, describe_tensor, one_graph
from fgai.devices import to_double
from fgai.errors import CallError, DataError, SettingError
from fgai.explanations import Attribution, Explanation, class_logits
from fgai.faithfulness.deletions import (
    Deletions,
    EdgeColumns,
    Incoming,
    copied_logits,
    full_graph_logits,
    log_drops,
)
from fgai.faithfulness.graphs import GraphProbe
from fgai.faithfulness.record import Faithfulness, HopResult
from fgai.faithfulness.selection import TIE, Ranked, ranked, sample_test
from fgai.grades import Grade, grade_faithful
from fgai.graph import degree, require, segment_sum, sort_edges
from fgai.intervals import Interval
from fgai.patching import message_passing_layers
from fgai.reading import Reader, Reading, open_reader
from fgai.relations import has_semantic_attention
from fgai.settings import check_positive, check_seed, check_whole

BATCH = 1_000_000  # largest number of copied edges in one forward pass
CHECKED = 4  # deletions that are compared with a deletion in the full graph
TOLERANCE = 1e-4  # largest difference of the two, relative to the largest logit
MAX_EDGES = 10**9  # limit on forward passes x edges if each deletion runs on the full graph
FULL_GRAPH_NODES = 50  # sampled nodes if each deletion runs on the full graph


def measure_faithfulness(
    model: nn.Module,
    data: GraphInput,
    explanation: str | Explanation = "tree",
    *,
    nodes: int | Tensor = 500,
    share: float = 0.5,
    at_least: int = 2,
    draws: int = 1,
    seed: int = 0,
    call: Call | None = None,
) -> Faithfulness:
    """Test whether the predictions of a model depend on the edges that an explanation ranks first.

    For each node and hop, the most attended, the least attended or random edges are deleted, and the drop of the
    log-probability of the predicted class is measured. Differences of drops are averaged over nodes, with bootstrap
    intervals.

    Args:
        model: Any model that `fgai.read` can read.
        data: The graph. Nodes of `test_mask` are tested, or all nodes; for graph classification, graphs.
        explanation: `tree`, `last`, `first`, `layer:NAME` or `leave-one-out`.
        nodes: The number of nodes to sample, or the nodes themselves, [n]. If predictions depend on more than the
            hops of a node, each deletion runs on the full graph, and at most 50 nodes are sampled.
        share: The share of the edges of each hop that is deleted, at most one half.
        at_least: Nodes with fewer incoming edges, without self-loops, are not sampled.
        draws: The number of random deletions per node and hop; more of them reduce the noise.
        seed: Random seed of the sample, the random deletions, the ties and the bootstrap.
        call: How to call the model, as for `fgai.read`.

    Returns:
        The differences with their intervals, and a grade: `supported`, `contradicted` or `unknown`.

    Raises:
        SettingError: A setting is outside its range.
        UnknownNameError: No explanation or attention layer has this name.
        DataError: The graph is invalid, or the model does not return one row of logits per node.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> measure_faithfulness(backbones.build("gat", data), data, "last", nodes=30).grade.value
    'unknown'
    """
    _check_settings(nodes, share, at_least, draws, seed)
    data = one_graph(data)
    generator = torch.Generator().manual_seed(seed)
    with open_reader(model, call) as read:
        clean = read.checked(data)
        of_graphs = clean.items is not None and clean.items.kind == "graphs"
        if clean.items is None or clean.items.kind == "pairs":
            raise DataError(
                f"the model returns {len(clean.logits)} rows of logits for {data.num_nodes} nodes; faithfulness needs "
                "a model with one row per node"
            )
        if clean.logits.numel() == 0:
            raise CallError(f"{type(model).__name__} returned logits without classes; faithfulness needs logits [N, C]")
        attribution = clean.attribution(explanation, read=read, graph=data)
        if attribution.over != "edges":
            raise SettingError(f"{explanation!r} is over pairs of nodes; deleting edges tests only layers over edges")
        if of_graphs:
            probe = GraphProbe(read, data, clean, attribution)
            sample = probe.sample(nodes, at_least, generator)
            ranks = probe.ranks(sample, generator)
        else:
            probe = _Probe(read, data, clean, attribution, *_depth(model, clean))
            sample = _sample(attribution, probe, data, nodes, at_least, generator)
            probe.decide(sample[:CHECKED], torch.Generator().manual_seed(seed))
            if probe.full_graph:
                sample = sample if isinstance(nodes, Tensor) else sample[:FULL_GRAPH_NODES]
                probe.check_cost(len(sample))
            ranks = _rank(attribution, sample, probe, generator)
        parts = [_measure(*rows, probe, share, draws, generator) for rows in ranks]
    return _result(attribution, share, len(sample), parts, _prefers_edges(clean, attribution), probe, seed)


def _check_settings(nodes: int | Tensor, share: float, at_least: int, draws: int, seed: int) -> None:
    check_positive(share=share)
    if share > 0.5:
        raise SettingError(f"share={share}; give at most 0.5, so that the most and the least attended edges differ")
    check_whole(2, at_least=at_least)
    check_whole(1, draws=draws)
    check_seed(seed)
    if not isinstance(nodes, Tensor):
        check_whole(1, nodes=nodes)
    elif nodes.dim() != 1 or nodes.dtype not in (torch.int32, torch.int64):
        raise SettingError(f"nodes is {describe_tensor(nodes)}; give a number of nodes, or their ids as integers [n]")


@dataclass
class _Probe:
    """Measures the drop of a prediction if edges are deleted.

    Indices of nodes and edges are on the device of the attribution, and the graph is on that of the model.
    """

    read: Reader
    data: Data
    clean: Reading
    attribution: Attribution
    depth: int
    early: int
    full_graph: bool | None = None  # each deletion needs the full graph; unknown before the first one
    notes: tuple[str, ...] = ()
    items: ClassVar[str] = "nodes"

    def __post_init__(self) -> None:
        distinct, self.data = self.attribution.edge_index, sort_edges(self.data)  # once, not for each deletion
        edges = require(self.data, "edge_index").to(distinct)
        self.columns = EdgeColumns(edges, distinct)
        self.deletable = self.columns.deletable
        self.incoming = Incoming(edges, int(self.data.num_nodes or 0))
        self.cost = _cost(self.incoming, edges, self.depth + self.early)

    def decide(self, nodes: Tensor, generator: torch.Generator) -> None:
        """Find out on a few nodes whether each deletion needs the full graph."""
        for few, groups in _rank(self.attribution, nodes, self, generator):
            self.drops(few[groups.node], groups, groups.rank == 0)

    def check_cost(self, nodes: int) -> None:
        """Raise if deletions on the full graph take too long for so many nodes."""
        edges = require(self.data, "edge_index").size(1)
        if nodes * self.depth * edges > MAX_EDGES:
            raise SettingError(
                f"predictions depend on more than {self.depth} hops, so each deletion of {nodes} nodes needs a forward "
                f"pass over {edges:,} edges; test fewer nodes, or another model"
            )

    def drops(self, node: Tensor, groups: Ranked, gone: Tensor) -> Tensor:
        """Return the drops of the log-probability of predicted classes without the edges `gone` of each group; [G]."""
        order = groups.group[gone].argsort(stable=True)
        group, edge = groups.group[gone][order], groups.edge[gone][order]
        owner, column = self.columns.of(edge)
        deletions = Deletions(node, group[owner], column)
        if self.full_graph is None:
            self._check(deletions)
        logits = torch.cat([self._logits(part) for part in self._batches(deletions)])
        return log_drops(to_double(class_logits(self.clean.logits))[node], logits)

    def _logits(self, deletions: Deletions) -> Tensor:
        if self.full_graph:
            return full_graph_logits(self.read, self.data, deletions)
        return copied_logits(self.read, self.data, deletions, self.incoming, self.depth, self.early)

    def _batches(self, deletions: Deletions) -> Iterator[Deletions]:
        part = (self.cost[deletions.node].cumsum(0) / BATCH).long()
        bounds = [0, *part.unique_consecutive(return_counts=True)[1].cumsum(0).tolist()]
        return (deletions.part(first, last) for first, last in pairwise(bounds))

    def _check(self, deletions: Deletions) -> None:
        """Compare copies with deletions in the full graph; if they differ, do not use copies."""
        few = deletions.part(0, CHECKED)
        truth = full_graph_logits(self.read, self.data, few)
        scale = float(self.clean.logits.abs().max())
        try:
            copied = copied_logits(self.read, self.data, few, self.incoming, self.depth, self.early)
            near = bool((copied - truth).abs().max() <= TOLERANCE * max(scale, 1e-6))
            self.full_graph = not near or has_semantic_attention(self.read.model)  # many copies shift its means
        except (CallError, IndexError):  # a model of a fixed number of nodes
            self.full_graph = True
        if self.full_graph:
            self.notes = (
                "predictions depend on more than the hops of a node: each deletion ran on the full graph, and at most "
                f"{FULL_GRAPH_NODES} nodes are sampled",
            )


@dataclass(frozen=True)
class _Differences:
    """The three paired differences of each group (a node and a hop)."""

    node: Tensor  # [G]
    hop: Tensor  # [G]
    differences: Tensor  # [3, G]: necessity, against the least, sufficiency


def _measure(
    nodes: Tensor, groups: Ranked, probe: _Probe | GraphProbe, share: float, draws: int, generator: torch.Generator
) -> _Differences:
    """Delete the most attended, the least attended and random edges of each group, and return the differences."""
    effective_k, size = groups.effective_k(share)[groups.group], groups.size[groups.group]
    node = nodes[groups.node]

    def drop(gone: Tensor) -> Tensor:
        return probe.drops(node, groups, gone)

    most, least = drop(groups.rank < effective_k), drop(groups.rank >= size - effective_k)
    only_most = drop(groups.rank >= effective_k)
    random, only_random = torch.zeros_like(most), torch.zeros_like(most)
    for _ in range(draws):
        shuffled = groups.shuffled(generator)
        random += drop(shuffled < effective_k) / draws
        only_random += drop(shuffled >= effective_k) / draws
    return _Differences(node, groups.hop, torch.stack([most - random, most - least, only_random - only_most]))


def _rank(
    attribution: Attribution, nodes: Tensor, probe: _Probe, generator: torch.Generator
) -> Iterator[tuple[Tensor, Ranked]]:
    """Yield parts of the nodes and the ranks of their edges."""
    for rows in attribution.chunks(nodes):
        groups = ranked(rows, probe.deletable, generator)
        if len(groups.size):
            yield rows.nodes, groups


def _result(
    attribution: Attribution,
    share: float,
    sampled: int,
    parts: list[_Differences],
    prefers: bool,
    probe: _Probe | GraphProbe,
    seed: int,
) -> Faithfulness:
    """Sum the differences over the hops of each node. Nodes whose incoming edges are all tied are omitted."""
    empty = torch.zeros(0, dtype=torch.long)
    node, hop = (torch.cat([empty, *(getattr(part, name).cpu() for part in parts)]) for name in ("node", "hop"))
    differences = torch.cat([torch.zeros(3, 0, dtype=torch.double), *(part.differences.cpu() for part in parts)], dim=1)
    tested = torch.isin(node, node[hop == 1])
    names, at = node[tested].unique(return_inverse=True)
    sums = segment_sum(differences[:, tested].T, at, len(names)).T
    necessity, least, sufficiency = together = Interval.of_rows(sums.numpy(), seed)
    numbers = hop.unique().tolist()
    hops = tuple(HopResult(n, *Interval.of_rows(differences[:, hop == n].numpy(), seed)) for n in numbers[1:])
    if numbers:  # the differences of a single hop are the sums
        one = together if len(numbers) == 1 else Interval.of_rows(differences[:, hop == numbers[0]].numpy(), seed)
        hops = (HopResult(numbers[0], *one), *hops)
    grade = grade_faithful(necessity, least, f"'{attribution.name}'", probe.items)
    if not prefers:
        grade = Grade("unknown", "Not enough evidence: the attention is uniform.")
    needed = max(necessity.nodes_needed(), least.nodes_needed())
    return Faithfulness(
        attribution.name, share, len(names), sampled - len(names), necessity, least, sufficiency, hops, grade, needed,
        (*attribution.notes, *probe.notes), probe.items,
    )  # fmt: skip


def _sample(
    attribution: Attribution, probe: _Probe, data: Data, nodes: int | Tensor, at_least: int, generator: torch.Generator
) -> Tensor:
    """Return the given nodes, or a random sample of the test nodes that have enough edges."""
    edges = attribution.edge_index
    if isinstance(nodes, Tensor):
        return nodes.to(edges.device)
    deletable = probe.deletable & (edges[0] != edges[1])
    rows = min(attribution.num_nodes, len(probe.clean.logits))  # of a typed graph, the first nodes
    enough = degree(edges[1][deletable], int(data.num_nodes or 0))[:rows] >= at_least
    return sample_test(data, enough, nodes, generator)


def _prefers_edges(clean: Reading, attribution: Attribution) -> bool:
    """Return whether a layer's attention is not uniform; always true for explanations that are not attention."""
    if attribution.name == "leave-one-out":
        return True
    layers = [clean.attention[site] for site in explaining_sites(clean.attention)]
    return any(bool((nonuniformity(attention.mean_heads()) > TIE).any()) for attention in layers)


def _depth(model: nn.Module, clean: Reading) -> tuple[int, int]:
    """Return the number of message-passing layers, and 1 if one of them has no attention, else 0."""
    layers, attending = message_passing_layers(model), attention_layers(model)
    others = [name for name in layers if not any(site == name or site.startswith(f"{name}.") for site in attending)]
    own = sum(attention.over == "edges" for attention in clean.attention.values())
    typed = clean.items is not None and clean.items.typed is not None  # its relations are modules of their own
    return max(own + len(others), 0 if typed else len(layers)), int(bool(others))


def _cost(incoming: Incoming, edge_index: Tensor, depth: int) -> Tensor:
    """Return an upper bound on the copied edges of one deletion, per node; [N]."""
    own = to_double(incoming.count)
    cost = own
    for _ in range(depth - 1):
        cost = (own + segment_sum(cost[edge_index[0]], edge_index[1], incoming.num_nodes)).clamp(max=float(BATCH))
    return cost + 1
