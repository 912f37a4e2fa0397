"""A gate for a model's own tests: `assert_trustworthy` fails with the sentences of the grades that do not hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch_geometric.data import Data

from fgai.auditing import AuditReport, audit
from fgai.grades import GRADES, check_required, failures


def assert_trustworthy(
    model: nn.Module, data: Data, *, require: Sequence[str] = GRADES, **audit_settings: Any
) -> AuditReport:
    """Audit a model, and raise unless the required grades hold.

    Args:
        model: A trained PyG model.
        data: The graph.
        require: Grades that must hold: `used`, `faithful`, `stable`.
        audit_settings: More arguments of `fgai.audit`, such as `by`, `explanation` or `seeds`.

    Returns:
        The report of the audit.

    Raises:
        AssertionError: A grade does not hold; the message has a sentence for each.
        SettingError: `require` names something that is not a grade.

    >>> from fgai import NodeInjection, backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> untrained = backbones.build("gat", data)
    >>> assert_trustworthy(untrained, data, require=["stable"], by=NodeInjection(2, 5, steps=1), seeds=1)
    Traceback (most recent call last):
    AssertionError: GAT cannot be trusted...
    """
    check_required(require)
    report = audit(model, data, **audit_settings)
    missing = failures(report.grades, require)
    if missing:
        raise AssertionError("\n".join([f"{report.model} cannot be trusted:", *(f"- {line}" for line in missing)]))
    return report
