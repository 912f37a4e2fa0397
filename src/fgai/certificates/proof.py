"""The record of `certify(..., against=...)`: what is proved about each node or pair against one perturbation set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fgai.certificates.perturbation_sets import PerturbationSet, size_of
from fgai.printing import short_repr

How = Literal["exact", "bound", "vote", "none"]


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
        return self.budget >= (size_of(self.against) if budget is None else budget)

    def shares(self, budget: float | None = None) -> dict[str, float | None]:
        """Return the certified share with the figures that it must be read with.

        Args:
            budget: A budget in the unit of `against`; that of `against` by default.

        Returns:
            `certified` and `certified_and_right`; `accuracy` of the certified classifier, `plain` of the model itself,
            and `without_links` of the model on the graph without links. None where there are no labels or no items.
        """
        certified, right = self.certified(budget), self._right(self.prediction)
        return {
            "certified": self._share(certified),
            "certified_and_right": self._share(None if right is None else certified & right),
            "accuracy": self._share(right),
            "plain": self._share(self._right(self.plain)),
            "without_links": self._share(self._right(self.without_links)),
        }

    def text(self) -> str:
        """Return a summary for the terminal."""
        rows = [f"{name.replace('_', ' '):20} {_format(value)}" for name, value in self.shares().items()]
        overlap = "none" if self.overlap is None else f"{float(self.overlap.nanmean()):.3f} on average"
        return "\n".join(
            [
                f"against {self.against}: {self.how} ({self.reason})",
                *rows,
                f"{'overlap of the top k':20} {overlap} ({self.overlap_how})",
            ]
        )

    def __str__(self) -> str:
        return self.text()

    __repr__ = short_repr

    def _right(self, prediction: Tensor | None) -> Tensor | None:
        """Return where a prediction is the label; None without labels."""
        return None if prediction is None or self.label is None else prediction == self.label

    def _share(self, mask: Tensor | None) -> float | None:
        """Return the share of the test items inside a mask."""
        if mask is None:
            return None
        selected = mask if self.test is None else mask[self.test]
        return float(selected.cpu().double().mean()) if len(selected) else None


def _format(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
