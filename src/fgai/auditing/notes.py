"""The notes of an audit: what a reader must know about the attack, the explanation and the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fgai.adversaries import Threat
from fgai.calling import RecomputedEncodings, call_by_signature, forward_parameters, takes_graph
from fgai.checks import are_sigmoids
from fgai.faithfulness import Faithfulness
from fgai.grades import Grades
from fgai.items import items_of
from fgai.metrics.explanation import TOP
from fgai.trial import Trial


def audit_notes(clean: Trial, trials: Sequence[Trial], tested: Faithfulness | None, threat: Threat) -> tuple[str, ...]:
    """What a reader must know about the attack, the explanation and the tests."""
    notes = [*([f"{threat.name}: {threat.about.removesuffix('.')}"] if threat.name else []), *clean.attribution.notes]
    if clean.graph.get("y") is None:
        notes.append("labels are the model's own predictions on the clean graph, so F1 starts at 1")
    if clean.layers is None:
        notes.append(f"V_{TOP} and g-JSD are means over {len(clean.nodes)} random nodes")
    if (part := clean.deletions.part) is not None:
        notes.append(f"F-slopes and deletion curves are over {len(part.nodes)} random test nodes, of a large graph")
    if are_sigmoids(clean.clean.logits):
        notes.append("all logits lie between 0 and 1; if they come from a sigmoid, let the model return its input")
    notes += [note for note in (tested.notes if tested else ()) if note not in notes]
    if tested is None:
        dense = "the attention is over all pairs of nodes, which deleting edges does not test"
        pairs = "the model predicts for pairs of nodes"
        notes.append(f"{pairs if clean.attribution.over == 'edges' else dense}, so faithfulness was not tested")
    if items_of(clean.graph).kind == "graphs" and not bool((clean.clean.explanation.degree > TOP).any()):
        notes.append(f"no node has more than {TOP} neighbours in the last layer: the certified shares say nothing")
    return (*notes, *_new_values(clean, trials), *unread_attention(clean))


def unread_attention(clean: Trial) -> list[str]:
    """A sentence about the attention that is not read, if there is any."""
    names = ", ".join(name or "the model itself" for name in clean.clean.unread)
    return [f"attention inside {names} is not read; the grades are about the attention that is read"] if names else []


def with_sentences(grades: Grades, sentences: list[str]) -> Grades:
    """The grades with these sentences in their summary line."""
    return replace(grades, line=" ".join([grades.line, *(f"{one[0].upper()}{one[1:]}." for one in sentences)]))


def _new_values(clean: Trial, trials: Sequence[Trial]) -> list[str]:
    """Sentences about the inputs, besides `x`, of the nodes and links that an attack adds."""
    graph, read, sentences = clean.graph, clean.read, []
    inputs = [
        name
        for name, value in graph.to_dict().items()
        if isinstance(value, Tensor) and value.is_floating_point() and name not in ("x", "y")
    ]
    if read.call is call_by_signature and not takes_graph(read.model):
        inputs = [name for name in inputs if name in forward_parameters(read.model)]
    links = ", ".join(
        f"{'the median' if graph[name].dim() == 1 else 'the row nearest to the median'} of `{name}`"
        for name in inputs
        if graph.is_edge_attr(name)
    )
    nodes = ", ".join(f"`{name}`" for name in inputs if graph.is_node_attr(name))
    if links and any(trial.graph.num_edges > graph.num_edges for trial in trials):
        sentences.append(f"links that the attack adds have {links}")
    added = any((trial.graph.num_nodes or 0) > (graph.num_nodes or 0) for trial in trials)
    if nodes and added and not isinstance(read.call, RecomputedEncodings):
        sentences.append(f"nodes that the attack adds have 0 in {nodes}, and all others keep theirs")
    return sentences
