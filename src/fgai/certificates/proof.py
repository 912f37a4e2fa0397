"""The record of `certify(..., against=...)`: what is proved about each node or pair against one perturbation set."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fgai.adversaries import AttentionBall
from fgai.certificates.perturbation_sets import Features, PerturbationSet, phrase, size_of, with_size
from fgai.files import atomic_write, checked_suffix, jsonable

How = Literal["exact", "bound", "vote", "none"]
MOST_STEPS = 100  # of a curve with every whole number
FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # of a radius, for the curve
BASELINES = {  # what a certified share must be read with
    "accuracy": "accuracy of the certified classifier",
    "plain": "accuracy of the model itself",
    "without_links": "accuracy of the model on the graph without links, which no link can attack",
}


@dataclass(frozen=True)
class Proof:
    """The largest budget of an attacker at which the class of each item is proved not to change.

    An item is a node, or a pair of nodes in link prediction. A budget of 0 means that nothing is proved. All tensors
    are on one device.

    Args:
        against: What the attacker may change.
        how: How the budget is known: `exact`, `bound`, `vote`, or `none` if nothing is proved.
        reason: One sentence: how the budget is known, or why nothing is proved.
        prediction: The classes of the certified classifier, [N].
        budget: The certified budget in the unit of `against`, [N].
        overlap: Lower bound of V_k of the explanation at the budget of `against`, [N]; None if there is no bound.
        overlap_how: How `overlap` is known.
        label: The true classes, [N].
        test: The items that shares are taken over, [N]; all items if None.
        plain: The classes that the model itself predicts, [N].
        without_links: The classes that the same model predicts on the graph without links, [N].
    """

    against: PerturbationSet
    how: How
    reason: str
    prediction: Tensor
    budget: Tensor
    overlap: Tensor | None = None
    overlap_how: How = "none"
    label: Tensor | None = None
    test: Tensor | None = None
    plain: Tensor | None = None
    without_links: Tensor | None = None

    def certified(self, budget: float | None = None) -> Tensor:
        """Return where the class is proved not to change, at this budget or at that of `against`; [N]."""
        enough = self.budget >= (size_of(self.against) if budget is None else budget)
        return enough if self.how != "none" else torch.zeros_like(enough)

    def shares(self, budget: float | None = None) -> dict[str, float | None]:
        """Return the certified share with the figures that it must be read with.

        Args:
            budget: A budget in the unit of `against`; that of `against` by default.

        Returns:
            `certified` and `certified_and_right`; `accuracy` of the certified classifier, `plain` of the model itself,
            and `without_links` of the model on the graph without links. All but `certified` are shares of the items
            with a label (`y` is not negative). None where there are no labels or no items.
        """
        certified, right = self.certified(budget), self._right(self.prediction)
        return {
            "certified": self._share(certified, self.test),
            "certified_and_right": self._share(None if right is None else certified & right, self._labelled()),
            "accuracy": self._share(right, self._labelled()),
            "plain": self._share(self._right(self.plain), self._labelled()),
            "without_links": self._share(self._right(self.without_links), self._labelled()),
        }

    def curve(self, budgets: Sequence[float] | None = None) -> list[dict[str, float | None]]:
        """Return the shares over the budget.

        Args:
            budgets: Budgets in the unit of `against`. By default all whole numbers up to the largest certified budget;
                for distances, multiples of that of `against`.

        Returns:
            A row for each budget: `budget`, and the entries of `shares`.
        """
        chosen = self._budgets() if budgets is None else budgets
        return [{"budget": budget, **self.shares(budget)} for budget in chosen]

    def item(self, index: int) -> dict[str, Any]:
        """Return what is proved about one node or pair: the class and its budget, the overlap, how each is known."""
        budget, overlap = self.budget[index].item(), None if self.overlap is None else float(self.overlap[index])
        label = -1 if self.label is None else int(self.label[index])
        return {
            "prediction": int(self.prediction[index]),
            "right": None if label < 0 else int(self.prediction[index]) == label,
            "budget": budget,
            "how": self.how if budget > 0 else "none",
            "overlap": overlap,
            "overlap_how": self.overlap_how,
        }

    def item_sentence(self, index: int) -> str:
        """Return what is proved about the class of one node or pair as one sentence."""
        budget = self.item(index)["budget"]
        if budget <= 0:
            return f"Nothing is proved about its class against {phrase(self.against)}."
        proved = with_size(self.against, budget) if math.isfinite(budget) else self.against
        return f"No {phrase(proved)} can change its class ({self.how})."

    def sentence(self) -> str:
        """Return the result as one sentence."""
        if self.how == "none":
            return f"Nothing is proved against {phrase(self.against)}: {self.reason}."
        shares, items = self.shares(), "items" if self.test is None else "test items"
        right = shares["certified_and_right"]
        labelled, count = self._labelled(), len(self.budget) if self.test is None else int(self.test.sum())
        among = "" if labelled is None or int(labelled.sum()) == count else "of the labelled ones "
        more = "" if right is None else f", and {right:.1%} {among}are certified and right"
        share = "an unknown share" if shares["certified"] is None else f"{shares['certified']:.1%}"
        return f"No {phrase(self.against)} can change the class of {share} of the {items}{more} ({self.how})."

    def text(self) -> str:
        """Return the sentence, the shares over the budget up to that of `against`, and the baselines."""
        names = ("certified", "certified_and_right")
        curve = [(row["budget"], *(_format(row[name]) for name in names)) for row in self.curve(_steps(self.against))]
        shares = self.shares()
        mean = None if self.overlap is None else float(self.overlap.nanmean())
        overlap = "no bound" if mean is None else f"at least {mean:.3f} on average ({self.overlap_how})"
        return "\n".join(
            [
                self.sentence(),
                f"{'budget':>8} {'certified':>10} {'certified and right':>20}",
                *(f"{budget:>8g} {certified:>10} {right:>20}" for budget, certified, right in curve),
                *(f"{_format(shares[name])} {meaning}" for name, meaning in BASELINES.items()),
                f"how the class is known: {self.how} ({self.reason})",
                f"overlap of the top k: {overlap}",
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as JSON types, without the values per item."""
        return {
            "against": {"name": type(self.against).__name__, **asdict(self.against)},
            "how": self.how,
            "reason": self.reason,
            "sentence": self.sentence(),
            **self.shares(),
            "overlap": None if self.overlap is None else float(self.overlap.nanmean()),
            "overlap_how": self.overlap_how,
            "curve": self.curve(),
        }

    def json(self) -> str:
        """Return `as_dict` as JSON; numbers that are not finite become null."""
        return json.dumps(jsonable(self.as_dict()), indent=1, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write the proof to a `.json` or `.txt` file."""
        save_as(path, self)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        shares = ", ".join(f"{name.replace('_', ' ')} {_format(value)}" for name, value in self.shares().items())
        return f"Proof({self.against}, {self.how}, {len(self.budget)} items: {shares})"

    def _budgets(self) -> Sequence[float]:
        """Return the budgets of the curve."""
        if isinstance(self.against, Features):
            return (self.against.radius,)
        if isinstance(self.against, AttentionBall):
            return [self.against.radius * factor for factor in FACTORS]
        most = max(1, int(self.budget.max()) if len(self.budget) else 0)
        if most <= MOST_STEPS:
            return range(1, 1 + most)
        return sorted({*_steps(self.against), *self.budget[self.budget > 0].unique().tolist()})  # where it falls

    def _right(self, prediction: Tensor | None) -> Tensor | None:
        """Return where a prediction is the label; None without labels."""
        return None if prediction is None or self.label is None else prediction == self.label

    def _labelled(self) -> Tensor | None:
        """Return the test items with a label; None without labels."""
        if self.label is None:
            return None
        return self.label >= 0 if self.test is None else (self.label >= 0) & self.test

    def _share(self, mask: Tensor | None, among: Tensor | None) -> float | None:
        """Return the share of these items inside a mask; of all items if None."""
        if mask is None:
            return None
        selected = mask if among is None else mask[among]
        return float(selected.cpu().double().mean()) if len(selected) else None


def file_kind(path: Path) -> str:
    """Return the suffix of the file of a proof; raise if it is neither `.json` nor `.txt`."""
    return checked_suffix(path, (".json", ".txt"), "a certificate")


def save_as(path: str | Path, record: Any) -> None:
    """Write a record with `json` and `text` to a `.json` or `.txt` file."""
    path = Path(path)
    content = record.json() if file_kind(path) == ".json" else record.text()
    with atomic_write(path) as temporary:
        temporary.write_text(content + "\n")


def _steps(against: PerturbationSet) -> list[float]:
    """Return the budgets to print: 1, 2, 5, 10, ... below that of a count, and that itself.

    >>> from fgai.certificates import Links
    >>> _steps(Links(7)), _steps(Features(0.1))
    ([1, 2, 5, 7], [0.1])
    """
    size = size_of(against)
    if isinstance(against, Features | AttentionBall):
        return [size]
    below = (first * 10**power for power in range(len(str(size))) for first in (1, 2, 5))
    return [*(step for step in below if step < size), size]


def _format(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
