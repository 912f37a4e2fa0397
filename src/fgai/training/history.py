"""The epochs of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fgai.errors import DataError


@dataclass(frozen=True)
class Epoch:
    """The mean loss terms of one epoch, and the micro-F1 of the last validation, if there was one.

    >>> Epoch(0, {"label": 1.9}, 0.25).status, Epoch(0, {"label": 1.9}, None).status
    ('validation F1 0.250', '')
    """

    number: int
    terms: Mapping[str, float]
    val_f1: float | None

    @property
    def status(self) -> str:
        """The note beside the progress bar."""
        return "" if self.val_f1 is None else f"validation F1 {self.val_f1:.3f}"


def check_history(history: Sequence[Epoch], path: object, remedy: str) -> None:
    """Raise `DataError` if the epochs of a saved history have different terms."""
    if len({tuple(epoch.terms) for epoch in history}) > 1:
        raise DataError(f"{path} holds a history whose epochs have different terms; {remedy}")
