"""The entry to all proofs: without `against` about perturbed attention, with it about an attacker."""

from __future__ import annotations

from typing import overload

from torch import nn
from torch_geometric.data import Data

from fgai.calling import Call, along_messages
from fgai.certificates.against import prove
from fgai.certificates.explanation import CERTIFIED_TOP, Norm
from fgai.certificates.perturbation_sets import PerturbationSet
from fgai.certificates.proof import Proof
from fgai.certificates.record import Certificate, attention_certificate
from fgai.certificates.votes import Voted
from fgai.checks import refuse_sampled
from fgai.errors import SettingError

RADIUS, NORM, STEPS = 0.05, "l1", 10


@overload
def certify(
    model: nn.Module,
    data: Data,
    vanilla: nn.Module | None = None,
    k: int | float = CERTIFIED_TOP,
    radius: float = RADIUS,
    *,
    against: None = None,
    norm: Norm = NORM,
    steps: int = STEPS,
    call: Call | None = None,
) -> Certificate: ...


@overload
def certify(
    model: nn.Module, data: Data, *, against: PerturbationSet, k: int = CERTIFIED_TOP, call: Call | None = None
) -> Proof: ...


def certify(
    model: nn.Module,
    data: Data,
    vanilla: nn.Module | None = None,
    k: int | float = CERTIFIED_TOP,
    radius: float = RADIUS,
    *,
    against: PerturbationSet | None = None,
    norm: Norm = NORM,
    steps: int = STEPS,
    call: Call | None = None,
) -> Certificate | Proof:
    """Prove what an attacker cannot change.

    With `against`, the answer is a `Proof`: up to which budget of the attacker the class of each node or pair, and the
    top k of its explanation, do not change.

    | against | model | how it is known |
    | --- | --- | --- |
    | `Links` | `Voted(model)`, any model | vote |
    | `Deletions` | one or two layers of GATConv or GATv2Conv; or `Voted` | exact, bound or vote |
    | `Injection` | two layers of GATConv | bound |
    | `Features` | one or two layers of GATConv or GATv2Conv | bound |
    | `AttentionBall` | any with attention | class: bound; explanation: exact |

    Without `against`, the answer is a `Certificate`: the four conditions of the definition of a faithful explanation,
    for attention that is perturbed by at most `radius`. The graph does not change.

    Args:
        model: A trained model, or a `Voted` one.
        data: The graph.
        vanilla: The model before faithful training; without it there is no beta1 and no alpha1. Not with `against`.
        k: Size of the top k: a number of neighbours; without `against` also a fraction of them.
        radius: Largest norm of the attention perturbation, for each node and head. Not with `against`.
        against: What the attacker may change: a set of `fgai.certificates`.
        norm: Norm of the perturbation: `l1`, `l2` or `linf`. Not with `against`.
        steps: Steps of an attack whose result is reported beside the bound alpha2. Not with `against`.
        call: How to call the model, see `fgai.Reader`.

    Returns:
        A `Proof` with `against`, else a `Certificate`. If no bound is known, `Proof.how` is "none", `Proof.reason` is
        the cause, and nothing is certified.

    Raises:
        SettingError: A setting is invalid, or `against` is given with a setting of the certificate.
        DataError: The graph is invalid.
        CallError: The model cannot be called on the graph, or does not return logits.
        NotFiniteError: Logits or attention are not finite.

    >>> from fgai import Voted, backbones, datasets
    >>> from fgai.certificates import Links
    >>> data = datasets.load("synthetic")
    >>> model = backbones.build("gat", data)
    >>> proof = certify(Voted(model, groups=5), data, against=Links(1))
    >>> proof.how, proof.budget.shape
    ('vote', torch.Size([1000]))
    >>> certificate = certify(model, data, k=3, steps=1)
    >>> certificate.beta2.how, certificate.alpha2.how
    ('exact', 'bound')
    """
    refuse_sampled(data)
    return certify_part(model, data, vanilla, k, radius, against=against, norm=norm, steps=steps, call=call)


def certify_part(
    model: nn.Module,
    data: Data,
    vanilla: nn.Module | None = None,
    k: int | float = CERTIFIED_TOP,
    radius: float = RADIUS,
    *,
    against: PerturbationSet | None = None,
    norm: Norm = NORM,
    steps: int = STEPS,
    call: Call | None = None,
) -> Certificate | Proof:
    """Do the same as `certify`, also on a batch of a neighbour loader: it holds for the seed nodes only."""
    if isinstance(model, Voted) and against is None:
        raise SettingError("a Voted model has no attention of its own; give against=Links(...), or certify voted.model")
    data, call = along_messages(model, data, call)
    if against is None:
        return attention_certificate(model, data, vanilla, k, radius, norm, steps, call)
    defaults = {"vanilla": None, "radius": RADIUS, "norm": NORM, "steps": STEPS}
    given = {"vanilla": vanilla, "radius": radius, "norm": norm, "steps": steps}
    if unused := [name for name, value in given.items() if value is not defaults[name] and value != defaults[name]]:
        raise SettingError(
            f"{', '.join(unused)} and against={type(against).__name__}; these belong to the certificate without "
            "`against`. Leave them out, or give AttentionBall(radius, norm) as `against`"
        )
    return prove(model, data, against, k, call)
