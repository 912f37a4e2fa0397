"""Certificates against a named attacker: the budget at which the class of each node is proved not to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adversaries import AttentionBall
from fgai.adversaries.base import check_features
from fgai.adversaries.gains import binary_logits
from fgai.calling import Call
from fgai.certificates.chain import Chain, NoBoundError, class_logits, parse_chain
from fgai.certificates.deletions import certified_under_deletions
from fgai.certificates.explanation import guaranteed_overlap
from fgai.certificates.features import certified_under_features
from fgai.certificates.injections import certified_members, certified_under_injection
from fgai.certificates.order import ordered_overlap
from fgai.certificates.perturbation_sets import Deletions, Features, Injection, Links, PerturbationSet
from fgai.certificates.prediction import prediction_bound
from fgai.certificates.proof import How, Proof
from fgai.certificates.votes import Voted, is_local
from fgai.checks import one_graph
from fgai.errors import SettingError
from fgai.graph import degree, without_edges
from fgai.items import refuse_graphs
from fgai.model_checks import refuse_unused_links, repeated_reading
from fgai.progress import progress
from fgai.reading import Reading, open_reader, read
from fgai.settings import check_whole
from fgai.typed import is_typed


def prove(model: nn.Module, data: Data, against: PerturbationSet, k: float, call: Call | None) -> Proof:
    """Prove up to which budget of an attacker the class of each node or pair does not change.

    See `fgai.certify` for the arguments. If no bound is known, `how` is "none", and `reason` is the cause.
    """
    if type(against) not in _PROVE:
        raise SettingError(f"{against!r} is no perturbation set; give one of {[kind.__name__ for kind in _PROVE]}")
    check_whole(1, k=k)
    data = one_graph(data, masks=("test_mask",))
    check_features(data)
    if not (is_typed(data) and isinstance(model, Voted)):
        what = "A proof without votes, fgai.Voted(model)," if is_typed(data) else "A proof about the graph"
        refuse_graphs(data, what, "audit the model instead: fgai.audit(model, data)")
    provers = _VOTES if isinstance(model, Voted) else _PROVE
    try:
        proof = provers[type(against)](model, data, against, int(k), call)
    except NoBoundError as error:
        proof = Proof(against, "none", str(error), *_zero_budget(model, data, call))
    return _on_one_device(_add_baselines(proof, model, data, call))


def _by_votes(model: Any, data: Data, against: Links | Deletions, k: int, call: Call | None) -> Proof:
    votes = model.votes(data, call)
    if not is_local(model, data, call):
        reason = "logits change when nodes are added that have no link to the other nodes, so no vote is safe"
        return Proof(against, "none", reason, votes.prediction, torch.zeros_like(votes.budget))
    reason = f"{model.groups} graphs vote, and a link changes one vote; there is no bound on the explanation"
    return Proof(against, "vote", reason, votes.prediction, votes.budget)


def _deletions(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    chain = parse_chain(model, data, call)
    all_links = max(1, int(degree(chain.target, chain.nodes).max()))
    budget = _largest_budget(chain, against.links, lambda links: certified_under_deletions(chain, links), all_links)
    if chain.first is None and chain.last.loops:
        return Proof(against, "exact", "one layer: the worst links are known", chain.prediction, budget)
    reason = (
        "one layer without self-loops: the worst links are known, but nodes that may lose all are left out"
        if chain.first is None
        else "the worst links of the last layer are known, those of the first are bounded by intervals"
    )
    return Proof(against, *_none_if_empty(reason, budget), chain.prediction, budget)


def _injection(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    chain, overlap = parse_chain(model, data, call), None
    if chain.last.att is None:
        overlap = ordered_overlap(read(model, data, call).explanation, k, against.nodes, against.neighbours)
    overlap_how: How = "none" if overlap is None else "bound"
    try:
        budget = _largest_budget(
            chain, against.nodes, lambda nodes: certified_under_injection(chain, replace(against, nodes=nodes))
        )
    except NoBoundError as error:
        zero = torch.zeros_like(chain.prediction)
        return Proof(against, "none", str(error), chain.prediction, zero, overlap, overlap_how)
    if overlap is not None and not against.neighbours:
        overlap = torch.maximum(overlap, certified_members(chain, against, k))
    how, reason = _none_if_empty("the states of injected nodes are bounded by intervals", budget)
    return Proof(against, how, reason, chain.prediction, budget, overlap, overlap_how)


def _attention(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    if against.on != "weights" or against.sites is not None:
        raise SettingError(f"{against}: proofs are about the weights of the last layer; leave `on` and `sites` out")
    with open_reader(model, call) as reader:
        clean = repeated_reading(reader, data)
        bound = prediction_bound(reader, data, against.norm)
    overlap = guaranteed_overlap(clean.explanation, k, against.radius, against.norm)
    if bound is None:
        reason = "the logits are not linear in the weights"
        return Proof(against, "none", reason, *_zero_budget(model, data, call), overlap, "exact")
    radius = bound.class_radius.nan_to_num(0.0, posinf=torch.inf)
    budget = radius.where(radius.isinf(), radius.nextafter(torch.zeros_like(radius)))  # the radius itself is excluded
    prediction = binary_logits(clean).argmax(1)
    return Proof(against, "bound", "the logits are linear in the weights", prediction, budget, overlap, "exact")


def _features(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    chain = parse_chain(model, data, call)
    budget = certified_under_features(chain, against.radius).double() * against.radius
    how, reason = _none_if_empty("values and scores are bounded by intervals", budget)
    return Proof(against, how, reason, chain.prediction, budget)


def _links_unvoted(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    raise NoBoundError("no bound is known for links that change anywhere; wrap the model: fgai.Voted(model)")


def _votes_unsupported(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    raise NoBoundError("votes are certified against changed links only; give Links, or certify the model without votes")


_Prove = Callable[[nn.Module, Data, Any, int, Call | None], Proof]
_PROVE: dict[type, _Prove] = {
    Links: _links_unvoted,
    Deletions: _deletions,
    Injection: _injection,
    Features: _features,
    AttentionBall: _attention,
}
_VOTES: dict[type, _Prove] = {kind: _by_votes if kind in (Links, Deletions) else _votes_unsupported for kind in _PROVE}


def _largest_budget(chain: Chain, most: int, certified: Callable[[int], Tensor], enough: int | None = None) -> Tensor:
    """Return the largest budget up to `most` such that it and all smaller ones are certified; [N].

    Sizes above `enough` change nothing more: they are not tried.
    """
    remaining, budget = torch.ones_like(chain.prediction, dtype=torch.bool), torch.zeros_like(chain.prediction)
    sizes = most if enough is None else min(most, enough)
    with progress("certify", sizes) as advance:
        for size in range(1, 1 + sizes):
            if not bool(remaining.any()):
                return budget
            remaining = remaining & certified(size)
            budget += remaining.long()
            advance(f"{float(remaining.double().mean()):.1%} of the items hold at {size}")
    return torch.where(remaining, most, budget)


def _none_if_empty(reason: str, budget: Tensor) -> tuple[How, str]:
    """Return "bound" and the reason, or "none" if no node is certified."""
    return ("bound", reason) if bool((budget > 0).any()) else ("none", f"{reason}; this certifies no node of the model")


def _zero_budget(model: nn.Module, data: Data, call: Call | None) -> tuple[Tensor, Tensor]:
    """Return the predictions, and a budget of 0 for each."""
    prediction = _predict(model, data, call)
    return prediction, torch.zeros_like(prediction)


def _predict(model: nn.Module, data: Data, call: Call | None) -> Tensor:
    """Return the predicted classes; [N]."""
    if isinstance(model, Voted):
        return model.votes(data, call).prediction
    return class_logits(model, data, call).argmax(1)


def _add_baselines(proof: Proof, model: nn.Module, data: Data, call: Call | None) -> Proof:
    """Add the labels, and the predictions of the model itself with all links and without any.

    Votes of a model that does not use the links are refused: they would certify all nodes.
    """
    inner = model.model if isinstance(model, Voted) else model
    plain, bare = (class_logits(inner, graph, call) for graph in (data, without_edges(data)))
    if isinstance(model, Voted) and _VOTES[type(proof.against)] is _by_votes:
        refuse_unused_links(inner, data, Reading(plain, {}), Reading(bare, {}))
    label, test = (value if isinstance(value := data.get(name), Tensor) else None for name in ("y", "test_mask"))
    return replace(proof, label=label, test=test, plain=plain.argmax(1), without_links=bare.argmax(1))


def _on_one_device(proof: Proof) -> Proof:
    """Move all tensors to the device of the budget: the CPU if the device of the graph has no float64."""
    tensors = {f.name: value for f in fields(proof) if isinstance(value := getattr(proof, f.name), Tensor)}
    return replace(proof, **{name: value.to(proof.budget.device) for name, value in tensors.items()})
