"""The audit: read the clean graph, let the adversary loose once per seed, measure, judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adversaries import ADVERSARIES, Adversary, NodeInjection
from fgai.auditing.neighbourhood import Neighbourhood, neighbourhoods
from fgai.auditing.record import AuditReport, Curves, Estimate, NodeShift
from fgai.auditing.sanity import cascading_randomisation, without_attention
from fgai.auditing.verdict import judge
from fgai.calling import Call
from fgai.certificates import certified_radius, certified_share, guaranteed_overlap
from fgai.deletion import SHARES
from fgai.errors import SettingError
from fgai.metrics import METRICS, measure, random_attention, shift, top_overlap
from fgai.metrics.explanation import TOP
from fgai.progress import progress
from fgai.reading import Reading, open_reader
from fgai.settings import check_whole
from fgai.trial import Trial, attacked_trial, clean_trial, deletion_slope
from fgai.versions import versions

SAID = 200  # characters of a name that is kept
KEPT = 100  # of the nodes that moved most
CERTIFIED = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.05, 0.1)  # radii at which the certificate is shown
RANDOM_DRAWS = 10  # of random explanations, the floor


def audit(
    model: nn.Module,
    data: Data,
    by: Adversary = NodeInjection(),
    *,
    gain: str = "cross-entropy",
    seeds: int = 5,
    call: Call | None = None,
    name: str = "",
    show_nodes: Sequence[int] = (),
    reference: AuditReport | None = None,
) -> AuditReport:
    """Can the attention of this model on this graph be trusted?

    The adversary attacks the model through its own gradients, with the seeds 0, 1, ... in place of its own, making
    `gain` large (one of `fgai ls`: on the prediction or on the explanation). Judged are the nodes of `data.test_mask`,
    or all; without `data.y` the model's own clean answers are the labels. The neighbourhoods of the nodes that moved
    most are kept to be looked at, and those of the nodes in `watch` and in the report `beside` which this one
    will be looked at; `data.names`, if there, says what nodes are called. Model and graph are left as they were.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> report = audit(backbones.build("gat", data), data, NodeInjection(nodes=2, edges=5, steps=2), seeds=2)
    >>> report.verdict.word in ("stable", "unstable", "degenerate", "unfaithful")
    True
    """
    check_whole(1, seeds=seeds)
    if strangers := [node for node in show_nodes if not 0 <= node < int(data.num_nodes or 0)]:
        raise SettingError(f"watch names {strangers}, and the graph has the nodes 0 to {int(data.num_nodes or 0) - 1}")
    with open_reader(model, call) as read, progress("audit", seeds + 1) as advance:
        clean = clean_trial(read, data)
        before, baselines = measure(clean), _baselines(model, clean, call)
        advance("clean")
        trials: list[Trial] = []
        after: list[dict[str, float]] = []
        for seed in range(seeds):
            trials.append(attacked_trial(by, gain, clean, seed))
            after.append(measure(trials[-1]))
            advance(f"seed {seed}: F1 {after[-1]['f1']:.3f}")
    moved, views = _shown(clean.clean, [trial.now for trial in trials], show_nodes, reference)
    figures = {metric: Estimate.of([row[metric] for row in after]) for metric in METRICS}
    return AuditReport(
        model=(name or type(model).__name__)[:SAID],
        graph={"nodes": int(data.num_nodes or 0), "edges": int(data.num_edges)},
        adversary=describe(by),
        gain=gain,
        seeds=seeds,
        clean=before,
        attacked=figures,
        baselines=baselines,
        certified=_certified(clean),
        curves=_curves(clean, trials),
        moved=moved,
        views=views,
        names=_names(data, views),
        verdict=judge(before, {name: figure.mean for name, figure in figures.items()}, baselines, clean.clean.unread),
        versions=versions(),
        guaranteed={f"{r:g}": float(guaranteed_overlap(clean.clean.explanation, TOP, r).nanmean()) for r in CERTIFIED},
    )


def describe(adversary: Adversary) -> dict[str, Any]:
    """The name and the budget of an adversary, as data."""
    names = [name for name, kind in ADVERSARIES.items() if kind is type(adversary)]
    settings: Any = adversary
    return {"name": names[0] if names else type(adversary).__name__, **_as_json(asdict(settings))}


def _as_json(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _baselines(model: nn.Module, clean: Trial, call: Call | None) -> dict[str, float]:
    """What an explanation must beat: random ones, no attention, random parameters, always naming the largest class.

    Here edges compete within a node, so that 1/degree decides nothing.
    """
    effect = without_attention(model, clean.graph, call=call)
    draws = [random_attention(clean.clean.explanation, seed) for seed in range(RANDOM_DRAWS)]
    slopes = Estimate.of([deletion_slope(clean, draw, "most", "node") for draw in draws])
    return {
        "f_slope_most": deletion_slope(clean, clean.clean.explanation, "most", "node"),
        "f_slope_least": deletion_slope(clean, clean.clean.explanation, "least", "node"),
        "f_slope_random": slopes.mean,
        "f_slope_random_deviation": slopes.deviation,
        "g_tvd_uniform": effect.g_tvd,
        "changed_uniform": effect.changed,
        "overlap_randomised": list(cascading_randomisation(model, clean.graph, call=call).values())[-1],
        "f1_largest_class": float(clean.labels.bincount().max() / len(clean.labels)),
    }


def _certified(clean: Trial) -> dict[str, float]:
    """The share of nodes with more than k neighbours whose whole top k is certified at a few radii."""
    radius = certified_radius(clean.clean.explanation, TOP)
    return {f"{size:g}": certified_share(radius, size) for size in CERTIFIED}


def _curves(clean: Trial, trials: list[Trial]) -> Curves:
    """F+ and F-, clean and mean over seeds."""

    def mean(of: list[Trial]) -> dict[str, tuple[float, ...]]:
        return {first: tuple(np.mean([t.curves[first] for t in of], axis=0).tolist()) for first in clean.curves}

    return Curves(SHARES, mean([clean]), mean(trials))


def _shown(
    clean: Reading, attacks: list[Reading], show_nodes: Sequence[int], reference: AuditReport | None
) -> tuple[tuple[NodeShift, ...], tuple[Neighbourhood, ...]]:
    """The nodes that moved most, and what is to be looked at: their neighbourhoods, and those that were asked for."""
    overlap = torch.stack([top_overlap(clean.explanation, now.explanation) for now in attacks])
    moved = _moved(clean, attacks, overlap)
    nodes: dict[int, tuple[int, ...]] = dict.fromkeys((*(row.node for row in moved), *show_nodes), ())
    nodes |= {view.node: view.neighbours for view in (reference.views if reference else ())}
    return moved, neighbourhoods(nodes, clean.explanation, [now.explanation for now in attacks], overlap)


def _names(data: Data, views: tuple[Neighbourhood, ...]) -> dict[str, str]:
    """What the nodes that are shown are called, where the graph says so; injected ones have no name."""
    names = data.get("names")
    shown = sorted({node for view in views for node in (view.node, *view.neighbours)})
    return {} if names is None else {str(node): str(names[node])[:SAID] for node in shown if node < len(names)}


def _moved(clean: Reading, attacks: list[Reading], overlaps: Tensor) -> tuple[NodeShift, ...]:
    """The nodes whose top neighbours were lost most, then whose attention moved most, on average over seeds."""
    overlap = overlaps.mean(0)
    distance = torch.stack([shift(clean.explanation, a.explanation) for a in attacks]).mean(0)
    answers = [reading.probs.argmax(-1).tolist() for reading in (clean, *attacks)]
    answers = answers if len(clean.logits) == len(overlap) else []  # a model of links answers for pairs, not for nodes
    nodes = (~overlap.isnan()).nonzero().flatten()
    order = nodes[distance[nodes].argsort(descending=True, stable=True)]
    order = order[overlap[order].argsort(stable=True)][:KEPT]
    return tuple(
        NodeShift(node, float(overlap[node]), float(distance[node]), *_of(node, answers)) for node in order.tolist()
    )


def _of(node: int, answers: list[list[int]]) -> tuple[int | None, tuple[int, ...]]:
    clean, *attacked = [said[node] for said in answers] or [None]
    return clean, tuple(said for said in attacked if said is not None)
