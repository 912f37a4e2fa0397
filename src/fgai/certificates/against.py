"""Certificates against a named attacker: of every item, the budget up to which its class is proved to stay, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.acceleration import accelerated
from fgai.adversaries import AttentionBall
from fgai.adversaries.gains import binary_logits
from fgai.certificates.chain import Chain, NoBoundError, take_apart
from fgai.certificates.deletions import kept_under_deletions
from fgai.certificates.explanation import guaranteed_overlap
from fgai.certificates.features import kept_under_features
from fgai.certificates.injections import kept_members, kept_under_injection
from fgai.certificates.order import ordered_overlap
from fgai.certificates.prediction import prediction_bound
from fgai.certificates.threats import Deletions, Features, Injection, Links, Threat
from fgai.certificates.votes import Voted, is_local
from fgai.errors import SettingError
from fgai.graph import delete_edges, require
from fgai.reading import Call, Reader, Reading, call_by_signature, eval_mode, read

How = Literal["exact", "bound", "vote", "none"]


@dataclass(frozen=True)
class Proof:
    """What is proved of every item against one threat: up to which budget its class stays, and how this is known.

    A budget of 0 says that nothing is proved. `overlap` is V_k of the explanation at the threat's own budget.
    """

    against: Threat
    how: How
    reason: str  # how it is known, or why nothing is, in words
    answer: Tensor  # [N], of the classifier that is certified
    budget: Tensor  # [N], in the threat's unit
    overlap: Tensor | None = None  # [N]
    overlap_how: How = "none"
    label: Tensor | None = None  # [N]
    test: Tensor | None = None  # [N], the items that shares are over; all without
    plain: Tensor | None = None  # [N], the answers of the model itself
    without_links: Tensor | None = None  # [N], of the same model on the graph without any link

    @property
    def size(self) -> float:
        """The threat's own budget."""
        return _size(self.against)

    def kept(self, budget: float | None = None) -> Tensor:
        """Where the class is proved to stay; [N]."""
        return self.budget >= (self.size if budget is None else budget)

    def shares(self, budget: float | None = None) -> dict[str, float | None]:
        """The share certified, beside what it costs: never read one without the others.

        `accuracy` is that of the certified classifier, `plain` of the model itself, `without_links` of the model when
        no link is there to attack.
        """
        kept, right = self.kept(budget), self._right(self.answer)
        return {
            "certified": self._share(kept),
            "certified_and_right": self._share(None if right is None else kept & right),
            "accuracy": self._share(right),
            "plain": self._share(self._right(self.plain)),
            "without_links": self._share(self._right(self.without_links)),
        }

    def text(self) -> str:
        """For the terminal."""
        number = lambda value: "unknown" if value is None else f"{value:.3f}"  # noqa: E731
        rows = [f"{name.replace('_', ' '):20} {number(value)}" for name, value in self.shares().items()]
        known = "none" if self.overlap is None else f"{float(self.overlap.nanmean()):.3f} on average"
        return "\n".join(
            [
                f"against {self.against}: {self.how} ({self.reason})",
                *rows,
                f"{'overlap of the top k':20} {known} ({self.overlap_how})",
            ]
        )

    def __str__(self) -> str:
        return self.text()

    def _right(self, answer: Tensor | None) -> Tensor | None:
        return None if answer is None or self.label is None else answer == self.label

    def _share(self, where: Tensor | None) -> float | None:
        if where is None:
            return None
        chosen = where if self.test is None else where[self.test]
        return float(chosen.double().mean()) if len(chosen) else None


def certify_against(model: nn.Module, data: Data, against: Threat, *, k: int = 10, call: Call | None = None) -> Proof:
    """What is proved of every item of `data` against this threat.

    | threat | model | how |
    | --- | --- | --- |
    | `Links` | `Voted(model)`, any model | vote |
    | `Deletions` | one or two layers of GATConv or GATv2Conv; or `Voted` | exact for one layer, else bound; or vote |
    | `Injection` | two layers of GATConv | bound |
    | `Features` | one or two layers of GATConv or GATv2Conv | bound |
    | `AttentionBall` | any with attention | class: bound; explanation: exact |

    Where nothing is known `how` is "none" and `reason` says why; nothing is certified then.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> proof = certify_against(Voted(backbones.build("gat", data), groups=5), data, Links(1))
    >>> proof.how, proof.budget.shape
    ('vote', torch.Size([1000]))
    """
    prove = _VOTES if isinstance(model, Voted) else _PROVE
    if type(against) not in _PROVE:
        raise SettingError(f"{against!r} is no threat that is known; give one of {[kind.__name__ for kind in _PROVE]}")
    try:
        proof = prove[type(against)](model, data, against, k, call)
    except NoBoundError as error:
        proof = Proof(against, "none", str(error), *_nothing(model, data, call))
    return _beside(proof, model, data, call)


def _by_votes(model: Any, data: Data, against: Links | Deletions, k: int, call: Call | None) -> Proof:
    votes = model.votes(data, call)
    if not is_local(model, data, call):
        reason = "answers change when nodes are added that no link joins to the others, so no vote is safe"
        return Proof(against, "none", reason, votes.answer, torch.zeros_like(votes.budget))
    reason = f"{model.groups} graphs vote, and a link changes one vote; nothing is known of the explanation"
    return Proof(against, "vote", reason, votes.answer, votes.budget)


def _deletions(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    chain = take_apart(model, data, call)
    budget = _largest(chain, against.links, lambda links: kept_under_deletions(chain, links))
    if chain.first is None:
        return Proof(against, "exact", "one layer: the worst links are known", chain.answer, budget)
    reason = "the worst links of the last layer are known, those of the first are bounded by intervals"
    return Proof(against, *_unless_empty("bound", reason, budget), chain.answer, budget)


def _injection(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    chain, overlap = take_apart(model, data, call), None
    if chain.last.att is None:
        overlap = ordered_overlap(read(model, data, call).explanation, k, against.nodes, against.neighbours)
    known: How = "none" if overlap is None else "bound"
    try:
        budget = _largest(chain, against.nodes, lambda m: kept_under_injection(chain, replace(against, nodes=m)))
    except NoBoundError as error:
        nothing = torch.zeros_like(chain.answer)
        return Proof(against, "none", str(error), chain.answer, nothing, overlap, known)
    if overlap is not None and not against.neighbours:
        overlap = torch.maximum(overlap, kept_members(chain, against, k))
    how, reason = _unless_empty("bound", "states of injected nodes are bounded by intervals", budget)
    return Proof(against, how, reason, chain.answer, budget, overlap, known)


def _attention(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    if against.on != "weights" or against.sites is not None:
        raise SettingError(f"{against}: proofs are about the last layer; leave `on` and `sites` out")
    with eval_mode(model), accelerated(model):
        far, now = prediction_bound(reader := Reader(model, call), data, against.norm), reader(data).detach()
    overlap = guaranteed_overlap(now.explanation, k, against.radius, against.norm)
    answer = binary_logits(now).argmax(1)
    if far is None:
        return Proof(
            against, "none", "the logits are not linear in the weights", *_nothing(model, data, call), overlap, "exact"
        )
    radius = far.class_radius.nan_to_num(0.0, posinf=torch.inf)
    budget = radius.where(radius.isinf(), radius.nextafter(torch.zeros_like(radius)))  # the radius itself is excluded
    return Proof(against, "bound", "the logits are linear in the weights", answer, budget, overlap, "exact")


def _no_links(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    raise NoBoundError(
        "nothing is known of a model as it is when links change anywhere; wrap it as fgai.certificates.Voted(model)"
    )


def _features(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    chain = take_apart(model, data, call)
    budget = kept_under_features(chain, against.radius).double() * against.radius
    how, reason = _unless_empty("bound", "values and scores are bounded by intervals", budget)
    return Proof(against, how, reason, chain.answer, budget)


def _no_votes(model: nn.Module, data: Data, against: Any, k: int, call: Call | None) -> Proof:
    raise NoBoundError(
        "votes count links, and this threat is not counted in links; certify it against Links, or the model itself"
    )


_Prove = Callable[[nn.Module, Data, Any, int, Call | None], Proof]
_PROVE: dict[type, _Prove] = {
    Links: _no_links,
    Deletions: _deletions,
    Injection: _injection,
    Features: _features,
    AttentionBall: _attention,
}
_VOTES: dict[type, _Prove] = {kind: _by_votes if kind in (Links, Deletions) else _no_votes for kind in _PROVE}


def _largest(chain: Chain, most: int, kept: Callable[[int], Tensor]) -> Tensor:
    """The largest budget up to `most` at which, and below which, the class is kept; [N]."""
    still, budget = torch.ones_like(chain.answer, dtype=torch.bool), torch.zeros_like(chain.answer)
    for size in range(1, most + 1):
        if bool(still.any()):
            still = still & kept(size)
            budget += still.long()
    return budget


def _unless_empty(how: How, reason: str, budget: Tensor) -> tuple[How, str]:
    return (how, reason) if bool((budget > 0).any()) else ("none", f"{reason}; this certifies no node of this model")


def _nothing(model: nn.Module, data: Data, call: Call | None) -> tuple[Tensor, Tensor]:
    answer = _answers(model, data, call)
    return answer, torch.zeros_like(answer)


def _answers(model: nn.Module, data: Data, call: Call | None) -> Tensor:
    if isinstance(model, Voted):
        return model.votes(data, call).answer
    with eval_mode(model), torch.no_grad():
        return binary_logits(Reading((call or call_by_signature)(model, data), {})).argmax(1)


def _beside(proof: Proof, model: nn.Module, data: Data, call: Call | None) -> Proof:
    """The same, with what every share is to be read beside."""
    inner = model.model if isinstance(model, Voted) else model
    bare = delete_edges(data, torch.ones_like(require(data, "edge_index")[0], dtype=torch.bool))
    label, test = (value if isinstance(value := data.get(name), Tensor) else None for name in ("y", "test_mask"))
    plain, without = (_answers(inner, graph, call) for graph in (data, bare))
    return replace(proof, label=label, test=test, plain=plain, without_links=without)


def _size(against: Threat) -> float:
    if isinstance(against, Links | Deletions):
        return against.links
    return against.nodes if isinstance(against, Injection) else against.radius
