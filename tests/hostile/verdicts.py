"""What must not be returned: grades, certificates, models and arrays that rest on numbers which are not finite."""

import math

import torch

from fgai.adversaries import Perturbation
from fgai.auditing import AuditReport, Comparison
from fgai.certificates import Certificate
from fgai.methods import Fit

DECIDING = {  # the numbers that decide the grades
    "clean": ("f1", "nonuniformity"),
    "attacked": ("f1", "overlap", "g_tvd"),
    "baselines": ("g_tvd_uniform", "overlap_randomised", "f1_largest_class"),
}


def finite_number(value):
    """A real number; True is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def unsound_audit(report):
    """An audit may not have a grade if a number that decides it is not finite."""
    if isinstance(report, Comparison):
        return next(filter(None, map(unsound_audit, report.reports.values())), "")
    assert isinstance(report, AuditReport)
    for part, names in DECIDING.items():
        for name in names:
            number = getattr(report, part).get(name)
            number = number if part != "attacked" else getattr(number, "mean", None)
            used = report.grades.used  # None if the model is too weak
            untested = name == "overlap_randomised" and (used is None or used.value != "yes")
            if not finite_number(number) and not untested:
                return f"grades {report.grades.answer!r} with {part} {name} = {number!r}"
    tested = report.faithfulness
    means = (tested.necessity.mean, tested.against_least.mean) if tested else ()
    if tested and tested.grade.value != "unknown" and not all(map(finite_number, means)):
        return f"faithful: {tested.grade.value!r} with means that are not finite"
    return ""


def unsound_certificate(certificate):
    """A certificate has a radius that is a number, and promises nothing at nodes whose attention is not finite."""
    assert isinstance(certificate, Certificate)
    if not finite_number(certificate.radius) or certificate.radius < 0:
        return f"a certificate for the radius {certificate.radius!r}"
    if not bool(certificate.attack.values.isfinite().all()) and bool(certificate.beta2.values.isfinite().any()):
        return "a promise about a model whose answers are not finite"
    return ""


def unsound_proof(proof):
    """Budgets are numbers of at least 0, and where nothing is proved, nothing is certified."""
    if bool(proof.budget.isnan().any()) or bool((proof.budget < 0).any()):
        return "a budget that is no number"
    return "something certified by nothing" if proof.how == "none" and bool((proof.budget > 0).any()) else ""


def unsound_weights(model):
    """No parameter and no buffer of a model that is returned is NaN or infinite."""
    for name, tensor in model.state_dict().items():
        if torch.is_tensor(tensor) and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return f"the weights {name!r} are not finite"
    return ""


def unsound_fit(fit):
    """A fit has finite weights, and a validation F1 that is a share."""
    assert isinstance(fit, Fit)
    score = fit.best.val_f1
    if score is not None and not (finite_number(score) and 0 <= score <= 1):
        return f"val_f1 = {score!r}"
    return unsound_weights(fit.model)


def unsound_perturbation(change):
    """A perturbation that was read holds finite numbers only."""
    assert isinstance(change, Perturbation)
    parts = {"x": change.x, "x_delta": change.x_delta, **change.weight_delta, **change.score_delta}
    for name, part in parts.items():
        if part is not None and part.is_floating_point() and not bool(part.isfinite().all()):
            return f"`{name}` is not finite"
    return ""
