import dataclasses

import pytest
import torch

from fgai import testing
from fgai.errors import SettingError
from fgai.grades import Grade, Grades
from fgai.testing import assert_trustworthy

GOOD, SUPPORTED = Grade("yes", "It is used."), Grade("supported", "Deleting hurts.")


@dataclasses.dataclass
class Report:
    grades: Grades
    model: str = "my GAT"


@pytest.fixture(name="gate")
def _gate(monkeypatch):
    """The gate, for an audit that gives these grades."""

    def gate(grades, **settings):
        monkeypatch.setattr(testing, "audit", lambda *_, **__: Report(grades))
        return assert_trustworthy(torch.nn.Identity(), None, **settings)  # pyright: ignore[reportArgumentType]

    return gate


def test_yes_and_supported_pass_and_the_report_is_returned(gate):
    grades = Grades(GOOD, SUPPORTED, GOOD, "yes", "")
    assert gate(grades).grades is grades


@pytest.mark.parametrize("value", ["no", "contradicted", "unknown"])
def test_anything_else_fails_with_its_sentence(gate, value):
    grades = Grades(GOOD, Grade(value, "Deleting them helps."), GOOD, "no", "")
    with pytest.raises(AssertionError, match=r"my GAT cannot be trusted:\n- faithful is \w+: Deleting them helps\."):
        gate(grades)
    assert gate(grades, require=["used", "stable"])  # what is not required may fail


def test_a_model_without_grades_fails_with_the_line_that_says_why(gate):
    with pytest.raises(AssertionError, match="stable is unknown: too weak"):
        gate(Grades(None, None, None, "not shown", "too weak"), require=["stable"])


def test_the_settings_are_those_of_the_audit(monkeypatch):
    given = {}
    grades = Grades(GOOD, SUPPORTED, GOOD, "yes", "")
    monkeypatch.setattr(testing, "audit", lambda *_, **settings: given.update(settings) or Report(grades))
    assert_trustworthy(torch.nn.Identity(), None, seeds=3, gain="flips")  # pyright: ignore[reportArgumentType]
    assert given == {"seeds": 3, "gain": "flips"}


@pytest.mark.parametrize("require", [[], ["stabel"], "stable"])
def test_what_is_not_a_list_of_grades_is_refused_before_the_audit(monkeypatch, require):
    monkeypatch.setattr(testing, "audit", lambda *_, **__: pytest.fail("the audit began"))
    with pytest.raises(SettingError):
        assert_trustworthy(torch.nn.Identity(), None, require=require)  # pyright: ignore[reportArgumentType]
