"""Trials: a model on a clean or an attacked graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries import GAINS, Adversary, Perturbation, check_adversary
from fgai.attention import Attention
from fgai.calling import call_errors
from fgai.checks import GraphInput, check_attention, check_labels, check_logits, one_graph
from fgai.computation_graph import LARGE
from fgai.deletion import Among, DeletionCurves, First, f_slope
from fgai.errors import DataError
from fgai.explanations import Attribution, Difference, EdgeWeights, Explanation, compare_nodes, one_layer
from fgai.explanations.attribution import ENTRIES
from fgai.items import copied, items_of
from fgai.model_checks import check_links_used, repeated_reading
from fgai.modes import frozen_params
from fgai.reading import Reader, Reading

MAX_NODES = 500  # nodes on which explanations of more than one layer are compared: each has its own weights


@dataclass(frozen=True)
class Trial:
    """Readings of one model on a graph, which may be attacked, and on the clean graph."""

    read: Reader
    graph: Data  # clean or attacked
    clean: Reading
    now: Reading  # of `graph`
    y: Tensor  # [N], labels of the items: the original nodes, the pairs, or the graphs of a batch
    eval_mask: Tensor  # [N], mask of the items that metrics use
    explanation: str | Explanation = "last"  # the explanation that metrics use
    reference: Trial | None = None  # the trial of the clean graph; None if this is it

    @property
    def predictions(self) -> Tensor:
        """The predicted distributions of the evaluated nodes; [M, C]."""
        return self.now.probs[: len(self.y)][self.eval_mask]

    @property
    def labels(self) -> Tensor:
        """The labels of the evaluated nodes; [M]."""
        return self.y[self.eval_mask]

    @property
    def correct(self) -> Tensor:
        """Mask of the evaluated nodes that are correct on the clean graph; [N]."""
        return self.eval_mask & (self.clean.probs.argmax(-1) == self.y)

    @cached_property
    def layers(self) -> tuple[Attention, Attention] | None:
        """The explanations of the clean graph and of `graph`, if they are the attention of one layer."""
        before, now = (one_layer(self.explanation, reading.attention) for reading in (self.clean, self.now))
        return None if before is None or now is None else (before, now)

    @cached_property
    def attribution(self) -> Attribution:
        """The explanation of `graph`, with the weight of each edge for each node."""
        return self.now.attribution(self.explanation, read=self.read, graph=self.graph)

    @cached_property
    def clean_attribution(self) -> Attribution:
        """The explanation of the clean graph."""
        if self.reference is not None:
            return self.reference.attribution
        return self.attribution if self.now is self.clean else self.clean.attribution(self.explanation)

    @cached_property
    def nodes(self) -> Tensor:
        """The nodes on which explanations of more than one layer are compared: a random sample, the same each time."""
        return sample_nodes(self.clean_attribution)

    @cached_property
    def difference(self) -> Difference:
        """V_k and JSD between the explanations of the clean graph and of `graph`, for `nodes`."""
        known = (self.reference or self).kept_rows
        return compare_nodes(self.clean_attribution, self.attribution, self.nodes, known=known)

    @cached_property
    def kept_rows(self) -> tuple[EdgeWeights, ...] | None:
        """The weights of the explanation for `nodes`, which each attack is compared with; None if they are too many."""
        if float(self.attribution.max_entries()[self.nodes].sum()) > ENTRIES:
            return None
        return tuple(self.attribution.chunks(self.nodes, ENTRIES // 2))

    @cached_property
    def ranking(self) -> Attention:
        """One weight per edge of `graph`, which orders the edges of deletion curves.

        It is the attention of the layer, or the sum over nodes of the weights that an edge has for them.
        """
        if self.layers is not None:
            return self.layers[1]
        attribution = self.attribution
        targets = max(layer.num_targets for layer in attribution.layers)
        return Attention(attribution.total()[:, None], attribution.edge_index, targets)

    @cached_property
    def deletions(self) -> DeletionCurves:
        """Deletion curves of the model on `graph`."""
        return DeletionCurves(self.read, self.graph, self.y, self.correct, self.now)

    @cached_property
    def curves(self) -> dict[First, list[float]]:
        """F(r) of the explanation of `graph`, deleting the most (F+) or the least (F-) attended edges first."""
        firsts: tuple[First, ...] = ("most", "least")
        return {first: self.deletions.curve(self.ranking, first) for first in firsts}


def sample_nodes(attribution: Attribution) -> Tensor:
    """Return at most `MAX_NODES` random nodes of an explanation, sorted; the same each time."""
    order = torch.randperm(attribution.num_nodes, generator=torch.Generator().manual_seed(0))[:MAX_NODES]
    return order.sort().values.to(attribution.edge_index.device)


def clean_trial(
    read: Reader, data: GraphInput, explanation: str | Explanation = "last", *, is_part: bool = False
) -> Trial:
    """Read the model on the clean graph twice and check the readings.

    Args:
        read: Reader of the model, in evaluation mode.
        data: The clean graph or batch. Metrics use the items in `test_mask`, or all if there is none. Without `y` or
            the `edge_label` of pairs, the predictions of the model are the labels.
        explanation: Name of the explanation that metrics use, see `fgai.explanations`.
        is_part: The graph is a part of a larger one, and may have no item in `test_mask`.

    Returns:
        The trial of the clean graph.
    """
    data = one_graph(data, masks=("test_mask",))
    clean = repeated_reading(read, data)
    labels, eval_mask = data.get("y"), data.get("test_mask")
    labels = clean.probs.argmax(-1) if labels is None else labels
    eval_mask = _all_items(clean) if eval_mask is None else eval_mask
    if not (is_part or eval_mask.any()) or (labels[eval_mask] < 0).any():
        raise DataError(
            f"`test_mask` holds {int(eval_mask.sum())} {items_of(data).kind}, and "
            f"{int((labels[eval_mask] < 0).sum())} of them have no label in `y`; give a mask of labelled ones, or omit "
            "`y`: the clean predictions of the model are then the labels"
        )
    check_labels(labels[eval_mask], clean.probs.size(1))
    return Trial(read, data, clean, clean, labels, eval_mask, explanation)


def attacked_trial(adversary: Adversary, gain: str, trial: Trial, seed: int) -> Trial:
    """Attack the model and read it on the attacked graph.

    Args:
        adversary: The attack.
        gain: Name of the gain that the attack maximises.
        trial: The trial of the clean graph.
        seed: Replaces the seed of the adversary.

    Returns:
        The trial of the attacked graph.
    """
    check_adversary(adversary)
    model, seeded = trial.read.model, replace(adversary, seed=seed)
    with call_errors(model, trial.graph), frozen_params(model), torch.enable_grad():
        now = seeded(trial.read, trial.graph, GAINS[gain](trial.clean)).detach()
    check_logits(now.logits, type(model).__name__, on="the attacked graph")
    check_attention(now.attention, type(model).__name__, on="the attacked graph")
    if _is_of_links(now.perturbation):
        check_links_used(trial.read, trial.graph, trial.now, now)
    graph = now.graph
    if graph.num_edges > LARGE and isinstance(x := graph.get("x"), Tensor):
        graph = copied(graph)
        graph.x = x.detach().clone()  # what the attack cached about its features is freed with them
        now = replace(now, graph=graph)
    return replace(trial, graph=graph, now=now, reference=trial)


def deletion_slope(trial: Trial, explanation: Attention, first: First, among: Among = "graph") -> float:
    """Compute the F-slope of any explanation of the graph of a trial."""
    return f_slope(trial.deletions.curve(explanation, first, among))


def _is_of_links(change: Perturbation) -> bool:
    """Return whether a perturbation changes links, or nothing."""
    links = change.added.size(1) + change.dropped.size(1)
    return bool(links) or (change.x_delta is None and not change.weight_delta and not change.score_delta)


def _all_items(clean: Reading) -> Tensor:
    """Return a mask of all items."""
    return torch.ones(len(clean.logits), dtype=torch.bool, device=clean.logits.device)
