"""Faithfulness per node: delete the most attended edges of each node, and compare with random deletions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.attention import explaining_sites, nonuniformity
from fgai.calling import Call, along_messages
from fgai.checks import GraphInput, describe_tensor, one_graph, refuse_sampled
from fgai.computation_graph import depth_of, large_part
from fgai.errors import CallError, DataError, SettingError
from fgai.explanations import Attribution, Explanation
from fgai.faithfulness.graphs import GraphProbe
from fgai.faithfulness.nodes import CHECKED, FULL_GRAPH_NODES, NodeProbe, sample_nodes
from fgai.faithfulness.record import Faithfulness, HopResult
from fgai.faithfulness.selection import TIE, Ranked
from fgai.grades import Grade, grade_faithful
from fgai.graph import locate, require, segment_sum
from fgai.intervals import Interval
from fgai.model_checks import check_links_used, repeated_reading
from fgai.reading import Reader, Reading, open_reader
from fgai.settings import check_positive, check_seed, check_whole

MAX_UNKNOWN = 0.05  # share of the attended edges that may be missing in the graph without a note


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
    refuse_sampled(data)
    data, call = along_messages(model, one_graph(data, masks=()), call, explanation)
    with open_reader(model, call) as read:
        clean = repeated_reading(read, data)
        check_links_used(read, data, clean)
        _check_items(model, data, clean)
        attribution = clean.attribution(explanation, read=read, graph=data)
        return faithfulness_of(
            read, data, clean, attribution, explanation, nodes, share=share, at_least=at_least, draws=draws, seed=seed
        )


def faithfulness_of(
    read: Reader,
    data: Data,
    clean: Reading,
    attribution: Attribution,
    explanation: str | Explanation,
    nodes: int | Tensor,
    *,
    share: float = 0.5,
    at_least: int = 2,
    draws: int = 1,
    seed: int = 0,
) -> Faithfulness:
    """Test the explanation of a graph that is read already, with the settings of `measure_faithfulness`.

    In a large graph, the deletions run on the computation graph of the sampled nodes.
    """
    generator = torch.Generator().manual_seed(seed)
    if attribution.over != "edges":
        raise SettingError(f"{attribution.name!r} is over pairs of nodes; deleting edges tests only layers over edges")
    prefers, unknown = _prefers_edges(clean, attribution), _unknown_edges(attribution, data)
    if clean.items is not None and clean.items.kind == "graphs":
        probe = GraphProbe(read, data, clean, attribution)
        sample = probe.sample(nodes, at_least, generator)
        ranks = probe.ranks(sample, generator)
    else:
        depth = depth_of(read.model, clean)
        sample = sample_nodes(attribution, data, len(clean.logits), nodes, at_least, generator)
        if (part := large_part(read, data, clean.logits, sample.to(clean.logits.device), sum(depth))) is not None:
            data, sample = part.graph, part.roots.to(sample.device)
            clean = read.checked(data)
            attribution = clean.attribution(explanation, read=read, graph=data)
        probe = NodeProbe(read, data, clean, attribution, *depth)
        probe.decide(sample[:CHECKED], torch.Generator().manual_seed(seed))
        if probe.full_graph:
            sample = sample if isinstance(nodes, Tensor) else sample[:FULL_GRAPH_NODES]
            probe.check_cost(len(sample))
        ranks = probe.ranks(sample, generator)
    parts = [_measure(*rows, probe, share, draws, generator) for rows in ranks]
    attribution = replace(attribution, notes=(*attribution.notes, *unknown))
    return _result(attribution, share, len(sample), parts, prefers, probe, seed)


def _unknown_edges(attribution: Attribution, data: Data) -> tuple[str, ...]:
    """Return a note if attended edges between two nodes are not in the graph, so that they cannot be deleted."""
    edges = attribution.edge_index[:, attribution.edge_index[0] != attribution.edge_index[1]]
    known = require(data, "edge_index").to(edges)
    missing = edges[:, locate(edges, known) < 0]
    if missing.size(1) <= MAX_UNKNOWN * edges.size(1):
        return ()
    both_ways = bool((locate(known[:, known[0] != known[1]], edges) >= 0).all())
    if both_ways and bool((locate(missing.flip(0), known) >= 0).all()):
        cause = "the model makes the edges undirected; give it the graph with both directions, ToUndirected()(data)"
    else:
        cause = "the model reverses the edges or builds its own"
    return (
        f"{missing.size(1)} of the {edges.size(1)} attended edges between two nodes are not edges of the graph, so "
        f"deletions do not test them: {cause}",
    )


def _check_items(model: nn.Module, data: Data, clean: Reading) -> None:
    """Raise unless the model has logits for each node or graph."""
    if clean.items is None or clean.items.kind == "pairs":
        raise DataError(
            f"the model returns {len(clean.logits)} rows of logits for {data.num_nodes} nodes; faithfulness needs "
            "a model with one row per node"
        )
    if clean.logits.numel() == 0:
        raise CallError(f"{type(model).__name__} returned logits without classes; faithfulness needs logits [N, C]")


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
    elif len(nodes.unique()) < len(nodes):
        raise SettingError(f"nodes has {len(nodes)} ids, and {len(nodes.unique())} different ones; give each id once")


@dataclass(frozen=True)
class _Differences:
    """The three paired differences of each group (a node and a hop)."""

    node: Tensor  # [G]
    hop: Tensor  # [G]
    differences: Tensor  # [3, G]: necessity, against the least, sufficiency


def _measure(
    nodes: Tensor, groups: Ranked, probe: NodeProbe | GraphProbe, share: float, draws: int, generator: torch.Generator
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


def _result(
    attribution: Attribution,
    share: float,
    sampled: int,
    parts: list[_Differences],
    prefers: bool,
    probe: NodeProbe | GraphProbe,
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


def _prefers_edges(clean: Reading, attribution: Attribution) -> bool:
    """Return whether a layer's attention is not uniform; always true for explanations that are not attention."""
    if attribution.name == "leave-one-out":
        return True
    layers = [clean.attention[site] for site in explaining_sites(clean.attention)]
    return any(bool((nonuniformity(attention.mean_heads()) > TIE).any()) for attention in layers)
