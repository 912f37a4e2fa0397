"""The four conditions of the definition, checked for every node, each with how it is known."""

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
from fgai.calling import Call, eval_mode
from fgai.certificates.explanation import Norm, certified_radius, certified_share, guaranteed_overlap
from fgai.certificates.intervals import IntervalBound, interval_bounds
from fgai.certificates.prediction import prediction_bound
from fgai.checks import check_logits, one_graph
from fgai.devices import to_double
from fgai.divergence import tvd
from fgai.files import atomic_write, checked_suffix
from fgai.metrics import top_overlap
from fgai.reading import Reader, open_reader, read
from fgai.settings import check_top

How = Literal["exact", "bound", "found", "none"]
RADII = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
SCOPE = "These certify attention space, not input space: an attacker of the graph may move attention further than this."


@dataclass(frozen=True)
class Condition:
    """One of the four numbers: its value for every node, and how it is known."""

    name: str
    meaning: str
    values: Tensor  # [N]; NaN where a node has no say
    how: How
    better: Literal["higher", "lower"]

    @property
    def mean(self) -> float:
        """Over the nodes that have a value."""
        return float(self.values.nanmean())

    @property
    def worst(self) -> float:
        """The value that holds for every node: what the definition asks for."""
        values = self.values[~self.values.isnan()]
        return float("nan") if len(values) == 0 else float(values.min() if self.better == "higher" else values.max())


@dataclass(frozen=True)
class Certificate:
    """What holds for every node of a graph when its attention is pushed by at most `radius`."""

    site: str
    heads: int
    k: int | float
    radius: float
    norm: Norm
    beta1: Condition | None
    beta2: Condition
    alpha1: Condition | None
    alpha2: Condition
    found: Condition
    certified: Tensor  # [N], the radius inside which the whole top k stays
    class_radius: Tensor | None  # [N], the radius inside which the class stays
    earlier: dict[str, IntervalBound | None]  # what the same push of an earlier layer can do; None where none is known
    unread: tuple[str, ...] = ()  # parts of the model that attend and were not read

    @property
    def numbers(self) -> list[Condition]:
        """The four, as far as they could be had, and the best attack beside alpha2."""
        return [n for n in (self.beta1, self.beta2, self.alpha1, self.alpha2, self.found) if n is not None]

    @property
    def contested(self) -> Tensor:
        """The certified radii of the nodes that can lose a member: those with more than k neighbours."""
        return self.certified[self.certified.isfinite()]

    def share(self, radius: float) -> float:
        """The share of the contested nodes whose whole top k stays at this radius."""
        return 1.0 if radius == 0 else certified_share(self.certified, radius)

    @property
    def median(self) -> float:
        """The median certified radius of the contested nodes."""
        return float(self.contested.median()) if len(self.contested) else float("inf")

    def curve(self, radii: Sequence[float] = RADII) -> list[tuple[float, float]]:
        """Radius and share of nodes certified, for the figure."""
        return [(radius, self.share(radius)) for radius in radii]

    def weakest(self, count: int = 10) -> list[tuple[int, float]]:
        """The nodes whose top k is lost first, with their certified radius."""
        order = self.certified.nan_to_num(torch.inf).argsort(stable=True)[:count]
        return [(int(node), float(self.certified[node])) for node in order]

    def text(self) -> str:
        """For the terminal."""
        layer = f"{self.site or 'the only layer'} ({self.heads} head{'s averaged' if self.heads > 1 else ''})"
        head = f"{layer}: top {self.k}, |perturbation|_{self.norm.removeprefix('l')} <= {self.radius} for every node"
        rows = [f"{n.name:8} {n.mean:8.4f} {n.worst:8.4f}  {n.how:6} {n.meaning}" for n in self.numbers]
        shares = ", ".join(f"{share:.1%} at {radius:g}" for radius, share in self.curve())
        return "\n".join(
            [
                head,
                f"{'':8} {'mean':>8} {'worst':>8}  known",
                *rows,
                f"{len(self.contested)} of {len(self.certified)} nodes have more than {self.k} neighbours; of these",
                f"the median certified radius is {self.median:.4g}, and the whole top k is certified for {shares}",
                *(f"{site} before it: {_promise(bound)}" for site, bound in self.earlier.items()),
                *([f"Not read, and not certified: attention inside {', '.join(self.unread)}"] if self.unread else []),
                SCOPE,
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything but the values per node."""
        four = {n.name: {"mean": n.mean, "worst": n.worst, "how": n.how, "meaning": n.meaning} for n in self.numbers}
        settings: dict[str, Any] = {
            "site": self.site,
            "heads": self.heads,
            "k": self.k,
            "radius": self.radius,
            "norm": self.norm,
        }
        return {
            **settings,
            **four,
            "median_certified_radius": self.median,
            "curve": self.curve(),
            "weakest": self.weakest(),
            "earlier": {site: _shares(bound) for site, bound in self.earlier.items()},
        }

    def save(self, path: str | Path) -> None:
        """Write to `.json` or `.txt`."""
        path = Path(path)
        plain = json.loads(json.dumps(self.as_dict()), parse_constant=lambda _: None)
        content = json.dumps(plain, indent=1, allow_nan=False) if kind_of(path) == ".json" else self.text()
        with atomic_write(path) as half:
            half.write_text(content + "\n")

    def __str__(self) -> str:
        return self.text()


def _promise(bound: IntervalBound | None) -> str:
    if bound is None:
        return "none (no bound is known for what lies between it and the answer)"
    if bound.vacuous:
        return "none (the bound by composition promises nothing at this radius; try a smaller one)"
    return (
        f"bound by composition: TVD {float(bound.tvd.mean()):.4f} on average, "
        f"class sure at {float(bound.kept.cpu().double().mean()):.1%} of the nodes"
    )


def _shares(bound: IntervalBound | None) -> dict[str, float] | None:
    if bound is None or bound.vacuous:
        return None
    return {"tvd": float(bound.tvd.mean()), "class_kept": float(bound.kept.cpu().double().mean())}


def kind_of(path: Path) -> str:
    """The kind of file that a certificate is saved as; others are refused."""
    return checked_suffix(path, (".json", ".txt"), "a certificate")


def certify(
    model: nn.Module,
    data: Data,
    vanilla: nn.Module | None = None,
    k: int | float = 10,
    radius: float = 0.05,
    *,
    norm: Norm = "l1",
    steps: int = 10,
    call: Call | None = None,
) -> Certificate:
    """Check the four conditions of the definition for every node; `vanilla` is the model before it was made faithful.

    The tensors of a certificate are float64: on the graph's device, or on the CPU where that device has no float64.
    `steps` of an `AttentionBall` of the same radius show, beside the bound on the prediction, what an attack reaches.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> certificate = certify(backbones.build("gat", data), data, k=3, steps=1)
    >>> certificate.beta2.how, certificate.alpha2.how
    ('exact', 'bound')
    """
    check_top(k)
    ball = AttentionBall(radius, norm, steps=steps)  # it checks its settings
    data = one_graph(data, edges=False)
    with open_reader(model, call) as reader:
        now = reader.checked(data)
        far = prediction_bound(reader, data, norm)
        attacked = ball(reader, data, GAINS["kl"](now)).detach()
    with eval_mode(model):  # on the layers as PyG wrote them, which is what the bound knows
        earlier = interval_bounds(Reader(model, call), data, radius, norm)
    check_logits(attacked.logits, type(model).__name__, on="the graph under attack")
    look = now.explanation.double()
    moved = to_double(tvd(now.probs, attacked.probs))
    before = None if vanilla is None else read(vanilla, data, call)
    return Certificate(
        site=next(reversed(list(now.attention))),
        heads=look.weight.size(1),
        k=k,
        radius=radius,
        norm=norm,
        beta1=before
        and Condition(
            "beta1", "V_k to vanilla's", top_overlap(before.explanation, now.explanation, k), "exact", "higher"
        ),
        beta2=Condition(
            "beta2", "V_k that no perturbation undercuts", guaranteed_overlap(look, k, radius, norm), "exact", "higher"
        ),
        alpha1=before
        and Condition(
            "alpha1", "TVD to vanilla's prediction", to_double(tvd(before.probs, now.probs)), "exact", "lower"
        ),
        alpha2=Condition("alpha2", "TVD that no perturbation exceeds", far.tvd(radius), "bound", "lower")
        if far is not None
        else Condition(
            "alpha2", "no bound: the logits are not linear in it", torch.full_like(moved, torch.nan), "none", "lower"
        ),
        found=Condition("attack", f"TVD that {steps} steps of attack reached", moved, "found", "lower"),
        certified=torch.where(look.degree > 0, certified_radius(look, k, 1.0, norm), torch.nan),
        class_radius=None if far is None else far.class_radius,
        earlier=earlier,
        unread=now.unread,
    )
