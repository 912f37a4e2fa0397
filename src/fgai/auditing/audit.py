"""The audit: read the clean graph, attack it once per seed, measure, and grade the explanation."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adversaries import ADVERSARIES, Adversary, Threat, as_threat, default_injection, describe
from fgai.auditing.doubts import doubt_about
from fgai.auditing.graph_view import column_names, graph_views
from fgai.auditing.neighbourhood import Neighbourhood, neighbourhoods
from fgai.auditing.notes import audit_notes, unread_attention, with_sentences
from fgai.auditing.record import AuditReport, Curves, Estimate, NodeShift
from fgai.auditing.sanity import overlap_at_random, without_attention
from fgai.calling import Call, along_messages
from fgai.certificates import Voted, certified_radius, certified_share, guaranteed_overlap
from fgai.checks import GraphInput, one_graph, refuse_sampled
from fgai.computation_graph import depth_of, large_part
from fgai.deletion import SHARES
from fgai.errors import DataError, SettingError
from fgai.explanations import resolve
from fgai.faithfulness import Faithfulness, faithfulness_of
from fgai.grades import grade
from fgai.items import items_of
from fgai.metrics import METRICS, measure, random_attention
from fgai.metrics.explanation import TOP
from fgai.metrics.trials import node_overlap, node_shift
from fgai.progress import progress
from fgai.reading import open_reader
from fgai.settings import check_whole
from fgai.trial import Trial, attacked_trial, clean_trial, deletion_slope
from fgai.typed import is_typed
from fgai.versions import versions

MAX_SEEDS = 10_000
NAME_LENGTH = 200  # characters of a name in a report
MAX_SHIFTS = 100  # nodes in `AuditReport.moved`
CERTIFIED = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.05, 0.1)  # radii of the certified shares
RANDOM_DRAWS = 10  # random explanations of the baseline


def audit(
    model: nn.Module,
    data: GraphInput,
    by: Adversary | Threat | str | None = None,
    *,
    explanation: str = "tree",
    gain: str | None = None,
    seeds: int = 5,
    sample: int = 500,
    call: Call | None = None,
    name: str = "",
    show_nodes: Sequence[int] = (),
    reference: AuditReport | None = None,
) -> AuditReport:
    """Audit an explanation of a model: is it used, is it faithful, is it stable under attack?

    The adversary attacks the model through the model's own gradients. The audit scores the nodes, pairs or graphs in
    `data.test_mask`, or all if there is no such mask. Without `data.y`, and for pairs without `data.edge_label`, the
    model's predictions on the clean graph are the labels. Model and graph are not changed.

    Args:
        model: The model.
        data: The graph; for graph classification a PyG `Batch`, or graphs as a list or a `DataLoader`. `data.names`,
            if present, holds a name per node for the report, `data.class_names` a name per class. Reports draw graphs
            with `data.element_names` and `data.bond_names`, the columns of one-hot `x` and `edge_attr`.
        by: The adversary, or the name of a threat model in `fgai.adversaries.THREATS`, such as "strongest". By default
            `NodeInjection()`, or `GraphInjection()` for graph classification. Its seed is replaced by 0, 1, ...,
            `seeds` - 1.
        explanation: What explains a prediction: `tree` (attention along the computation tree), `last` (attention of the
            last layer, as in the paper), `first`, `layer:NAME` or `leave-one-out`, see `fgai.explanations`.
        gain: What the adversary maximises: a name in `fgai.adversaries.GAINS`, on the prediction or the explanation. By
            default it is the gain of the threat model, or `cross-entropy`.
        seeds: Number of attacks.
        sample: Number of nodes or graphs in the test of faithfulness, or all if there are fewer. If the grade is
            `unknown`, its sentence says about how many would decide.
        call: How to call the model; by default, by the signature of `forward`.
        name: Name of the model in the report; by default, its class.
        show_nodes: Nodes whose neighbourhoods, or graphs of a batch, the report must contain, besides those that
            changed most.
        reference: A report whose neighbourhoods and graphs this one must contain too, for side-by-side display.

    Returns:
        Metrics on the clean and the attacked graph, baselines, certified shares, and three grades.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import NodeInjection
    >>> data = datasets.load("synthetic")
    >>> report = audit(backbones.build("gat", data), data, NodeInjection(nodes=2, edges=5, steps=2), seeds=2)
    >>> report.explanation, report.grades.answer  # an untrained model is too weak for grades
    ('tree', 'not shown')
    """
    check_whole(1, MAX_SEEDS, seeds=seeds)
    check_whole(1, sample=sample)
    refuse_sampled(data)
    if isinstance(model, Voted):
        raise SettingError("votes have no attention of their own; audit voted.model, and certify the votes")
    data, call = along_messages(model, one_graph(data), call, explanation)
    show_nodes = _whole_numbers(show_nodes)
    if unknown := [node for node in show_nodes if not 0 <= node < int(data.num_nodes or 0)]:
        raise SettingError(f"show_nodes has {unknown}, and the graph has the nodes 0 to {int(data.num_nodes or 0) - 1}")
    _check_names(data)
    class_names = _class_names(data)
    resolve(explanation)  # raise before the work begins if there is no such explanation
    threat = as_threat(ADVERSARIES[default_injection(data)]() if by is None else by, gain, explanation)
    with open_reader(model, call) as read, progress("audit", seeds + 2) as advance:
        clean = clean_trial(read, data, explanation)
        before, baselines = measure(clean), _baselines(model, clean, call)
        advance("clean")
        tested = _faithfulness(clean, sample)
        advance("faithfulness")
        trials: list[Trial] = []
        after: list[dict[str, float]] = []
        for seed in range(seeds):
            trials.append(attacked_trial(threat.adversary, threat.gain, clean, seed))
            after.append(measure(trials[-1]))
            advance(f"seed {seed}: F1 {after[-1]['f1']:.3f}")
        moved, views = _select_views(clean, trials, show_nodes, reference)
        shown = [view.graph for view in (reference.graph_views if reference else ())]
        views_of_graphs = graph_views(clean, trials, show_nodes, shown)
        doubt = doubt_about(clean, trials, threat)
    estimates = {metric: Estimate.of([row[metric] for row in after]) for metric in METRICS}
    adversary = describe(threat)
    return AuditReport(
        model=(name or type(model).__name__)[:NAME_LENGTH],
        graph=_size(data),
        explanation=explanation,
        adversary=adversary,
        gain=threat.gain,
        seeds=seeds,
        clean=before,
        attacked=estimates,
        baselines=baselines,
        certified=_certified(clean),
        curves=_curves(clean, trials),
        moved=moved,
        views=views,
        names=_names(data, views),
        faithfulness=tested,
        grades=with_sentences(
            grade(
                before,
                {metric: estimate.mean for metric, estimate in estimates.items()},
                baselines,
                tested.grade if tested else None,
                threat.name or adversary["name"],
                doubt=doubt,
            ),
            unread_attention(clean),
        ),
        notes=audit_notes(clean, trials, tested, threat),
        versions=versions(),
        class_names=class_names,
        types=_types(trials, views),
        graph_views=tuple(views_of_graphs),
        guaranteed={f"{r:g}": float(guaranteed_overlap(clean.clean.explanation, TOP, r).nanmean()) for r in CERTIFIED},
    )


def _size(data: Data) -> dict[str, int]:
    """The numbers of nodes and edges, and of graphs if the model answers for those."""
    size, items = {"nodes": int(data.num_nodes or 0), "edges": int(data.num_edges)}, items_of(data)
    return {**size, "graphs": items.count} if items.kind == "graphs" else size


def _baselines(model: nn.Module, clean: Trial, call: Call | None) -> dict[str, float]:
    """Baselines of an explanation: random ones, uniform attention, random parameters, and the largest class.

    Edges are ranked within each node, so that 1/degree has no influence.
    """
    effect = without_attention(model, clean.graph, clean.explanation, call=call, known=clean.clean)
    draws = [random_attention(clean.ranking, seed) for seed in range(RANDOM_DRAWS)]
    slopes = Estimate.of([deletion_slope(clean, draw, "most", "node") for draw in draws])
    return {
        "f_slope_most": deletion_slope(clean, clean.ranking, "most", "node"),
        "f_slope_least": deletion_slope(clean, clean.ranking, "least", "node"),
        "f_slope_random": slopes.mean,
        "f_slope_random_deviation": slopes.deviation,
        "g_tvd_uniform": effect.g_tvd,
        "changed_uniform": effect.changed,
        "overlap_randomised": _overlap_randomised(model, clean, call),
        "f1_largest_class": float(clean.labels.bincount().max() / len(clean.labels)),
    }


def _overlap_randomised(model: nn.Module, clean: Trial, call: Call | None) -> float:
    """V_5 between the explanation and that of random parameters, in a large graph on a part of it."""
    hops = sum(depth_of(clean.read.model, clean.clean))
    part = large_part(clean.read, clean.graph, clean.clean.logits, clean.nodes, hops)
    if part is None:
        return overlap_at_random(model, clean.graph, clean.explanation, call=call, known=clean.attribution)
    return overlap_at_random(model, part.graph, clean.explanation, call=call, nodes=part.roots)


def _faithfulness(clean: Trial, sample: int) -> Faithfulness | None:
    """The test of faithfulness on the clean graph; None if the model predicts for pairs, or attends over all nodes."""
    if clean.attribution.over != "edges":
        return None
    if items_of(clean.graph).kind == "pairs":
        return None
    return faithfulness_of(clean.read, clean.graph, clean.clean, clean.attribution, clean.explanation, sample)


def _certified(clean: Trial) -> dict[str, float]:
    """The share of nodes with more than k neighbours whose whole top k is certified, by radius."""
    radius = certified_radius(clean.clean.explanation, TOP)
    return {f"{size:g}": certified_share(radius, size) for size in CERTIFIED}


def _curves(clean: Trial, trials: list[Trial]) -> Curves:
    """F+ and F- on the clean graph, and their mean over the attacked graphs."""

    def mean(of: list[Trial]) -> dict[str, tuple[float, ...]]:
        return {first: tuple(np.mean([t.curves[first] for t in of], axis=0).tolist()) for first in clean.curves}

    return Curves(SHARES, mean([clean]), mean(trials))


def _whole_numbers(nodes: Sequence[int]) -> list[int]:
    """Return ids of nodes as integers of Python, also of an array or a tensor."""
    try:
        return [operator.index(node) for node in nodes]
    except TypeError as error:
        raise SettingError(f"show_nodes={nodes!r}; give the ids of nodes, whole numbers") from error


def _select_views(
    clean: Trial, trials: list[Trial], show_nodes: Sequence[int], reference: AuditReport | None
) -> tuple[tuple[NodeShift, ...], tuple[Neighbourhood, ...]]:
    """The nodes that changed most, and the neighbourhoods of these nodes and of the requested ones."""
    pairs = [node_overlap(trial) for trial in trials]
    compared, overlap = pairs[0][0], torch.stack([values for _, values in pairs])
    moved = _moved(clean, trials, compared, overlap)
    nodes: dict[int, tuple[int, ...]] = dict.fromkeys((*(row.node for row in moved), *show_nodes), ())
    nodes |= {view.node: view.neighbours for view in (reference.views if reference else ())}
    worst = dict(zip(compared.tolist(), overlap.nan_to_num(1.0).argmin(0).tolist(), strict=True))
    return moved, neighbourhoods(nodes, clean.attribution, [trial.attribution for trial in trials], worst)


def _check_names(data: Data) -> None:
    """Raise unless the names of a graph, if it has any, are one per node, and those of columns are lists."""
    for key in ("element_names", "bond_names"):
        column_names(data, key)
    names, nodes = data.get("names"), int(data.num_nodes or 0)
    if names is not None and (not hasattr(names, "__getitem__") or len(names) != nodes):
        raise DataError(f"`names` is {names!r:.60}; give a list with one name for each of the {nodes} nodes")


def _names(data: Data, views: tuple[Neighbourhood, ...]) -> dict[str, str]:
    """The names of the nodes in the views, if the graph has names; injected nodes have none."""
    names = data.get("names")
    nodes = sorted({node for view in views for node in (view.node, *view.neighbours)})
    return {} if names is None else {str(node): str(names[node])[:NAME_LENGTH] for node in nodes if node < len(names)}


def _types(trials: list[Trial], views: tuple[Neighbourhood, ...]) -> dict[str, str]:
    """The types of the nodes in the views, if the graph is typed; injected nodes have the type of the attack."""
    graphs = [trial.graph for trial in trials if is_typed(trial.graph)]
    if not graphs:
        return {}
    kinds = max((graph["node_type"] for graph in graphs), key=len).tolist()
    nodes = sorted({node for view in views for node in (view.node, *view.neighbours)})
    return {str(node): graphs[0]["typed"].node_types[kinds[node]] for node in nodes if node < len(kinds)}


def _class_names(data: Data) -> tuple[str, ...]:
    """The names of the classes, if the graph has them."""
    names = data.get("class_names")
    if names is not None and not isinstance(names, list | tuple | np.ndarray):
        raise DataError(f"`class_names` is of type {type(names).__name__}; give a list with a name per class")
    return tuple(str(name)[:NAME_LENGTH] for name in (() if names is None else names))


def _moved(clean: Trial, trials: list[Trial], compared: Tensor, overlaps: Tensor) -> tuple[NodeShift, ...]:
    """The nodes with the lowest mean V_k over seeds; ties are ordered by the mean change of the explanation."""
    overlap = overlaps.mean(0)
    distance = torch.stack([node_shift(trial) for trial in trials]).mean(0)
    items, readings = items_of(clean.graph), (clean.clean, *(trial.now for trial in trials))
    predictions = [reading.probs.argmax(-1) for reading in readings]
    if items.batch is not None:  # of a node, the prediction of its graph
        predictions = [classes[items.batch] for classes in predictions]
    if len(predictions[0]) != clean.attribution.num_nodes:
        predictions = []  # a link model predicts for pairs of nodes
    by_node = [classes.tolist() for classes in predictions]
    rows = (~overlap.isnan()).nonzero().flatten()
    order = rows[distance[rows].argsort(descending=True, stable=True)]
    order = order[overlap[order].argsort(stable=True)][:MAX_SHIFTS]
    return tuple(
        NodeShift(node, float(overlap[row]), float(distance[row]), *_predictions_at(node, by_node))
        for row, node in zip(order.tolist(), compared[order].tolist(), strict=True)
    )


def _predictions_at(node: int, predictions: list[list[int]]) -> tuple[int | None, tuple[int, ...]]:
    """The prediction for a node on the clean graph, and on each attacked graph."""
    clean, *attacked = [classes[node] for classes in predictions] or [None]
    return clean, tuple(label for label in attacked if label is not None)
