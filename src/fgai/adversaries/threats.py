"""Threat models by name: an adversary, its budget and its goal. A statement about robustness names one of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Adversary, check_adversary
from fgai.adversaries.block_coordinate import GRBCD, PRBCD
from fgai.adversaries.chosen import ChosenInjection, WorstOf
from fgai.adversaries.ensemble import AttackEnsemble
from fgai.adversaries.gains import GAINS, ON_EXPLANATIONS
from fgai.adversaries.injection import NodeInjection
from fgai.adversaries.perturbation import AttackResult
from fgai.adversaries.rewiring import EdgeRewiring
from fgai.adversaries.single import SingleTarget
from fgai.files import jsonable
from fgai.reading import Reader
from fgai.registry import Registry


@dataclass(frozen=True)
class Threat:
    """An adversary with its budget, the gain that it maximises, and one line that describes the attacker.

    Args:
        family: Name shared by threat models that differ only in their budget.
        adversary: The attack.
        gain: The name of the gain, in `GAINS`; `dataclasses.replace(threat, gain="...")` selects another one.
        about: Who attacks, and with what.
        name: Its name in `THREATS`; empty if it was made of an adversary.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> Threat("tiny", NodeInjection(1, 2, steps=1), "kl", "One injected node.")(read, data).graph.num_nodes
    1001
    """

    family: str
    adversary: Adversary
    gain: str
    about: str
    name: str = ""

    def __call__(self, read: Reader, graph: Data) -> AttackResult:
        """Attack a model.

        Args:
            read: Reader of the model, in evaluation mode.
            graph: The clean graph.

        Returns:
            The reading with the largest gain that the attack evaluated.
        """
        with torch.no_grad():
            clean = read(graph).detach()
        return self.adversary(read, graph, GAINS[self.gain](clean))


THREATS: Registry[Threat] = Registry("threat model")


def as_threat(by: Adversary | Threat | str, gain: str | None = None, explanation: str = "last") -> Threat:
    """Return the threat model with this name, or one made of this adversary.

    Args:
        by: A name in `THREATS`, a threat model, or an adversary.
        gain: Replaces the gain; by default it is that of the threat model, or `cross-entropy` for an adversary. The
            gain of a threat model against explanations and its surrogates are about `explanation`.
        explanation: Name of the explanation.

    Returns:
        The threat model.

    >>> as_threat("explanation", explanation="tree").gain, as_threat(NodeInjection()).gain
    ('attention-divergence:tree', 'cross-entropy')
    """
    if isinstance(by, str):
        by = THREATS[by]
    if not isinstance(by, Threat):
        check_adversary(by)
        return Threat("", by, gain or "cross-entropy", "")
    aimed = f"{by.gain}:{explanation}" if by.gain in ON_EXPLANATIONS else by.gain
    return replace(by, adversary=_aimed(by.adversary, explanation), gain=gain or aimed)


def _aimed(adversary: Any, explanation: str) -> Adversary:
    """Return the adversary with surrogates about this explanation; by default they are about the last layer."""
    names = getattr(adversary, "surrogates", ())
    if explanation == "last" or not set(names) & {*ON_EXPLANATIONS}:
        return adversary
    return replace(
        adversary, surrogates=tuple(f"{name}:{explanation}" if name in ON_EXPLANATIONS else name for name in names)
    )


def describe(threat: Threat) -> dict[str, Any]:
    """Return the names of the adversary and of the threat model, if it has one, and the settings, as JSON values.

    >>> described = describe(as_threat("strongest"))
    >>> described["name"], described["threat"], "threat" in describe(as_threat(NodeInjection()))
    ('chosen-injection', 'strongest', False)
    """
    settings = jsonable(_settings(threat.adversary))
    return {"name": settings["name"], **({"threat": threat.name} if threat.name else {}), **settings}


def _settings(value: Any) -> Any:
    """Return the settings of an adversary with its name, and so those of its members."""
    if isinstance(value, list | tuple):
        return [_settings(part) for part in value]
    if isinstance(value, dict):
        return {name: _settings(part) for name, part in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    settings = {field.name: _settings(getattr(value, field.name)) for field in fields(value)}
    kinds = [name for name, kind in ADVERSARIES.items() if kind is type(value)]
    return {"name": (kinds or [type(value).__name__])[0], **settings}


def register_threat(name: str, adversary: Adversary, gain: str, about: str, family: str = "") -> Threat:
    """Register a threat model by name, so that plans, `fgai.audit` and commands know it; return it.

    Args:
        name: Its name.
        adversary: The attack, with its budget.
        gain: The name of the gain, in `GAINS`.
        about: Who attacks, and with what; also its line in listings.
        family: Name shared by threat models that differ only in their budget; by default its own.

    >>> register_threat("strongest", NodeInjection(1, 5), "flips", "One injected node with five links.")
    Traceback (most recent call last):
    ValueError: a threat model called 'strongest' is already registered; choose another name
    """
    return THREATS.add(name, Threat(family or name, adversary, gain, about, name), about)


FLIPS = 200  # links that the attacker of the structure may add or drop
EXPLANATION = ("soft-top-k", "top-k-loss", "cross-entropy")

for _edges in (20, 40):
    register_threat(
        f"injection-20x{_edges}",
        NodeInjection(nodes=20, edges=_edges),
        "cross-entropy",
        f"The paper's attacker: 20 injected nodes with {_edges} random links each, any features in [-1, 1].",
        family="paper",
    )
register_threat(
    "ensemble",
    AttackEnsemble(nodes=20, edges=(20, 40)),
    "flips",
    "An attacker who knows the model: 20 injected nodes with 20 or 40 random links each, any features in [-1, 1], to "
    "change as many predictions as possible.",
)
register_threat(
    "ensemble-explanation",
    AttackEnsemble(nodes=20, edges=(40,), surrogates=EXPLANATION),
    "attention-divergence",
    "As ensemble, with 40 links, but to move the explanation as far as possible; predictions may change.",
    family="ensemble",
)
register_threat(
    "strongest",
    ChosenInjection(),
    "flips",
    "An attacker who knows the model: 20 injected nodes with 40 links each, to nodes of its choice, any features in "
    "[-1, 1], to change as many predictions as possible.",
)
register_threat(
    "realistic",
    ChosenInjection(features="realistic"),
    "flips",
    "As strongest, but injected nodes resemble the data: binary with as many ones as the median row, or inside the "
    "observed range and norm.",
)
register_threat(
    "similar",
    ChosenInjection(features="similar"),
    "flips",
    "As strongest, but injected nodes have a cosine similarity of more than 0.1 to the nodes that they are linked to, "
    "where possible, so that a defence that removes links between dissimilar nodes keeps them.",
    family="realistic",
)
register_threat(
    "explanation",
    ChosenInjection(surrogates=EXPLANATION),
    "attention-divergence",
    "As strongest, but to move the explanation as far as possible; predictions may change.",
)
register_threat(
    "explanation-kept",
    ChosenInjection(
        edges=(1, 4, 10, 40), links=("safe", "degree"), surrogates=(), schedules=((40, 0.05), (10, 0.2)), keep=3
    ),
    "attention-divergence-kept",
    "As explanation, but no prediction may change, so that predictions do not reveal the attack.",
    family="explanation",
)
register_threat(
    "structure",
    WorstOf(
        (
            PRBCD(FLIPS, epochs=20),
            GRBCD(FLIPS, epochs=20),
            EdgeRewiring(FLIPS // 2, FLIPS // 2),
            EdgeRewiring(FLIPS, 0),
        ),
        surrogates=("margin",),
    ),
    "flips",
    f"An attacker who knows the model and adds or drops {FLIPS} links between existing nodes, selected by gradients.",
)
for _nodes, _what in ((1, "node is"), (2, "nodes are"), (5, "nodes are")):
    register_threat(
        f"single-{_nodes}",
        SingleTarget(nodes=_nodes),
        "cross-entropy",
        f"An attacker of one node: {_nodes} injected {_what} linked to it, any features in [-1, 1].",
        family="single",
    )
