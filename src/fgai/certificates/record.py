"""The four conditions of the definition, checked for each node, each with its kind of evidence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adversaries import GAINS, AttentionBall
from fgai.attention import Attention, explaining_sites
from fgai.certificates.explanation import (
    Norm,
    certified_radius,
    certified_share,
    guaranteed_overlap,
)
from fgai.certificates.intervals import IntervalBound, interval_bounds
from fgai.certificates.prediction import PredictionBound, prediction_bound
from fgai.certificates.proof import save_as
from fgai.checks import check_logits, one_graph
from fgai.devices import to_double
from fgai.divergence import tvd
from fgai.errors import DataError
from fgai.files import jsonable
from fgai.items import refuse_typed
from fgai.metrics import top_overlap
from fgai.model_checks import repeated_reading
from fgai.modes import eval_mode
from fgai.printing import short_repr
from fgai.reading import Call, Reader, Reading, open_reader, read
from fgai.settings import check_top

How = Literal["exact", "bound", "found", "none"]  # "found": reached by an attack, not proved
RADII = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
SCOPE = "These hold in attention space, not input space: an attack on the graph may change attention further than this."


@dataclass(frozen=True)
class Condition:
    """One number of the certificate: its value for each node (of a prediction, for each item), and its evidence."""

    name: str
    meaning: str
    values: Tensor  # [N]; NaN where it is not defined
    how: How
    better: Literal["higher", "lower"]

    def __repr__(self) -> str:
        return f"Condition({self.name}: mean {self.mean:.4g}, worst {self.worst:.4g}, {self.how})"

    @property
    def mean(self) -> float:
        """The mean over the nodes that have a value."""
        return float(self.values.nanmean())

    @property
    def worst(self) -> float:
        """The value that holds for all nodes, as the definition requires."""
        values = self.values[~self.values.isnan()]
        return float("nan") if len(values) == 0 else float(values.min() if self.better == "higher" else values.max())


@dataclass(frozen=True)
class Certificate:
    """What holds for each node of a graph when its attention changes by at most `radius`."""

    site: str
    heads: int
    k: int | float
    radius: float
    norm: Norm
    beta1: Condition | None
    beta2: Condition
    alpha1: Condition | None
    alpha2: Condition
    attack: Condition  # the TVD that an attack reaches, to compare with alpha2
    certified: Tensor  # [N], the radius inside which the full top k stays
    class_radius: Tensor | None  # [N], the radius inside which the class of an item stays
    earlier: dict[str, IntervalBound | None]  # the same perturbation of an earlier layer; None where no bound is known
    unread: tuple[str, ...] = ()  # attention modules that could not be read
    others: tuple[str, ...] = ()  # layers over pairs of nodes, or that pool nodes, which no bound is about

    @property
    def conditions(self) -> list[Condition]:
        """The four conditions that could be computed, and the attack."""
        return [c for c in (self.beta1, self.beta2, self.alpha1, self.alpha2, self.attack) if c is not None]

    @property
    def contested(self) -> Tensor:
        """The certified radii of the nodes that can lose a member: those with more neighbours than their top k."""
        return self.certified[self.certified.isfinite()]

    def share(self, radius: float) -> float:
        """Return the share of the contested nodes whose full top k stays at this radius."""
        return 1.0 if radius == 0 else certified_share(self.certified, radius)

    @property
    def median(self) -> float:
        """The median certified radius of the contested nodes."""
        return float(self.contested.median()) if len(self.contested) else float("inf")

    def curve(self, radii: Sequence[float] = RADII) -> list[tuple[float, float]]:
        """Return pairs (radius, certified share of the contested nodes), for the figure."""
        return [(radius, self.share(radius)) for radius in radii]

    def weakest(self, count: int = 10) -> list[tuple[int, float]]:
        """Return the nodes with the smallest certified radii, as pairs (node, radius)."""
        order = self.certified.nan_to_num(torch.inf).argsort(stable=True)[:count]
        return [(int(node), float(self.certified[node])) for node in order]

    def text(self) -> str:
        """Return the certificate as text for the terminal."""
        layer = f"{self.site or 'the only layer'} ({self.heads} head{'s averaged' if self.heads > 1 else ''})"
        head = f"{layer}: top {self.k}, |perturbation|_{self.norm.removeprefix('l')} <= {self.radius} for every node"
        rows = [f"{c.name:8} {c.mean:8.4f} {c.worst:8.4f}  {c.how:6} {c.meaning}" for c in self.conditions]
        shares = ", ".join(f"{share:.1%} at {radius:g}" for radius, share in self.curve())
        return "\n".join(
            [
                head,
                f"{'':8} {'mean':>8} {'worst':>8}  evidence",
                *rows,
                f"{len(self.contested)} of {len(self.certified)} nodes have more neighbours than their top k; of these",
                f"the median certified radius is {self.median:.4g}, and the full top k is certified for {shares}",
                *(f"{site} before it: {_describe(bound)}" for site, bound in self.earlier.items()),
                *(
                    [f"Not certified: attention over pairs or pools of nodes, {', '.join(self.others)}"]
                    if self.others
                    else []
                ),
                *([f"Not read and not certified: attention inside {', '.join(self.unread)}"] if self.unread else []),
                SCOPE,
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all values as JSON types, without the values per node."""
        conditions = {
            c.name: {"mean": c.mean, "worst": c.worst, "how": c.how, "meaning": c.meaning} for c in self.conditions
        }
        settings: dict[str, Any] = {
            "site": self.site,
            "heads": self.heads,
            "k": self.k,
            "radius": self.radius,
            "norm": self.norm,
        }
        return {
            **settings,
            **conditions,
            "median_certified_radius": self.median,
            "curve": self.curve(),
            "weakest": self.weakest(),
            "earlier": {site: _shares(bound) for site, bound in self.earlier.items()},
        }

    def json(self) -> str:
        """Return `as_dict` as JSON; numbers that are not finite become null."""
        return json.dumps(jsonable(self.as_dict()), indent=1, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write the certificate to a `.json` or `.txt` file."""
        save_as(path, self)

    def __str__(self) -> str:
        return self.text()

    __repr__ = short_repr


def _describe(bound: IntervalBound | None) -> str:
    """Describe the bound of an earlier layer in one line."""
    if bound is None:
        return "none (no bound is known for the layers between it and the logits)"
    if bound.vacuous:
        return "none (the interval bound is vacuous at this radius; try a smaller one)"
    return (
        f"interval bound: TVD {float(bound.tvd.mean()):.4f} on average, "
        f"class certified at {float(bound.class_kept.cpu().double().mean()):.1%} of the nodes"
    )


def _shares(bound: IntervalBound | None) -> dict[str, float] | None:
    """Return the means of a bound, or None if it is vacuous."""
    if bound is None or bound.vacuous:
        return None
    return {"tvd": float(bound.tvd.mean()), "class_kept": float(bound.class_kept.cpu().double().mean())}


def attention_certificate(
    model: nn.Module,
    data: Data,
    vanilla: nn.Module | None,
    k: int | float,
    radius: float,
    norm: Norm,
    steps: int,
    call: Call | None,
) -> Certificate:
    """Check the four conditions of the definition for each node; see `fgai.certify` for the arguments.

    The tensors are float64: on the device of the graph, or on the CPU if that device has no float64.
    """
    check_top(k)
    ball = AttentionBall(radius, norm, steps=steps)  # checks its settings
    data = one_graph(data, masks=(), edges=False)
    refuse_typed(data, "`certify`")
    with open_reader(model, call) as reader, torch.enable_grad():
        clean = repeated_reading(reader, data)
        bound = prediction_bound(reader, data, norm)
        attacked = ball(reader, data, GAINS["kl"](clean)).detach()
    with eval_mode(model):  # without the kernels: the bound inspects PyG's own layers
        earlier = interval_bounds(Reader(model, call), data, radius, norm)
    check_logits(attacked.logits, type(model).__name__, on="the graph under attack")
    reference = None if vanilla is None else read(vanilla, data, call)
    if reference is not None and reference.probs.shape != clean.probs.shape:
        raise DataError(
            f"the vanilla model predicts {list(reference.probs.shape)} and this one {list(clean.probs.shape)}; give "
            "the model that this one was trained from"
        )
    explaining = explaining_sites(clean.attention)
    attention, attack = clean.explanation.double(), _attack_tvd(clean, attacked, steps)
    return Certificate(
        site=explaining[-1],
        heads=attention.weight.size(1),
        k=k,
        radius=radius,
        norm=norm,
        beta1=None if reference is None else _reference_overlap(reference, clean, k),
        beta2=_guaranteed_overlap(attention, k, radius, norm),
        alpha1=None if reference is None else _reference_tvd(reference, clean),
        alpha2=_tvd_bound(bound, radius, like=attack.values),
        attack=attack,
        certified=torch.where(attention.degree > 0, certified_radius(attention, k, 1.0, norm), torch.nan),
        class_radius=None if bound is None else bound.class_radius,
        earlier={site: bound for site, bound in earlier.items() if site in explaining[:-1]},
        unread=clean.unread,
        others=tuple(site for site in clean.attention if site not in explaining and not clean.attention[site].idle),
    )


def _reference_overlap(reference: Reading, clean: Reading, k: int | float) -> Condition:
    """Return beta1: the top-k overlap of the vanilla explanation and this one."""
    values = top_overlap(reference.explanation, clean.explanation, k)
    return Condition("beta1", "V_k with the vanilla explanation", values, "exact", "higher")


def _guaranteed_overlap(attention: Attention, k: int | float, radius: float, norm: Norm) -> Condition:
    """Return beta2: the least top-k overlap under any perturbation."""
    values = guaranteed_overlap(attention, k, radius, norm)
    return Condition("beta2", "least V_k under any perturbation", values, "exact", "higher")


def _reference_tvd(reference: Reading, clean: Reading) -> Condition:
    """Return alpha1: the TVD of the vanilla prediction and this one."""
    values = to_double(tvd(reference.probs, clean.probs))
    return Condition("alpha1", "TVD from the vanilla prediction", values, "exact", "lower")


def _tvd_bound(bound: PredictionBound | None, radius: float, like: Tensor) -> Condition:
    """Return alpha2: a bound on the TVD under any perturbation, or NaN, shaped as `like`, if there is no bound."""
    if bound is None:
        meaning = "no bound: the logits are not linear in the attention"
        return Condition("alpha2", meaning, torch.full_like(like, torch.nan), "none", "lower")
    return Condition("alpha2", "bound on the TVD under any perturbation", bound.tvd(radius), "bound", "lower")


def _attack_tvd(clean: Reading, attacked: Reading, steps: int) -> Condition:
    """Return the TVD that the attack reached."""
    values = to_double(tvd(clean.probs, attacked.probs))
    return Condition("attack", f"TVD reached by an attack of {steps} steps", values, "found", "lower")
