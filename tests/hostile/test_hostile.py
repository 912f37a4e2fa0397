"""A minute of the campaign, and that the campaign notices what it is there to notice."""

import json
import os
import time
from pathlib import Path

import pytest
import torch
from browser import driver, look
from calls import untried
from campaign import BAD, Target, run, run_case
from interruptions import DISK, KILL
from targets import TARGETS, share

from fgai.errors import DataError

ROOT = Path(__file__).parents[2]
INTERRUPTED = [trial.name for trial in (*KILL, *DISK)]
UNITS = 40  # of a minute in all; `python benchmarks/hostile.py` runs thousands


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_ends_raw_crashes_hangs_or_is_wrong_in_silence(name):
    target = TARGETS[name]
    counts, findings = run(target, share(target, UNITS))
    again = [f"{f.outcome}: python benchmarks/hostile.py --what {f.what!r} --seed {f.seed}  {f.said}" for f in findings]
    assert not findings, "\n".join(again)
    assert counts.total() == share(target, UNITS)


def test_every_public_name_is_tried():
    assert untried() == []


def refuse():
    raise DataError("a sentence")


def stumble():
    raise KeyError("x")


def crash():
    os.abort()


def spin():
    while True:
        time.sleep(0.01)


def swallow_spin():
    while True:
        try:
            spin()
        except BaseException:
            continue


def eat():
    return torch.ones(400_000_000)


def ask_for_too_much():
    try:
        return torch.ones(10**13)
    except RuntimeError as error:
        raise DataError("no memory") from error


@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        *[(refuse, "refused"), (list, "worked"), (stumble, "raw"), (crash, "crashed"), (spin, "hung")],
        *[(eat, "memory"), (ask_for_too_much, "memory"), (int, "silent")],
    ],
)
def test_the_campaign_tells_outcomes_apart(act, outcome, monkeypatch):
    monkeypatch.setattr("campaign.PATIENCE", 1.0)
    monkeypatch.setattr("campaign.SECONDS", 0.5)
    target = Target("trial", lambda rng, folder: act, lambda result: "wrong" if result == 0 else "")
    counts, findings = run(target, 2)
    assert counts == {outcome: 2}
    assert [finding.outcome for finding in findings] == [outcome] * (0 if outcome in ("refused", "worked") else 2)


def test_a_worker_that_cannot_be_interrupted_is_killed(monkeypatch):
    monkeypatch.setattr("campaign.PATIENCE", 0.5)
    monkeypatch.setattr("campaign.SECONDS", 0.3)
    monkeypatch.setattr("campaign.GRACE", 0.5)
    counts, _ = run(Target("trial", lambda rng, folder: swallow_spin), 1)
    assert counts == {"hung": 1}


def test_a_case_is_the_same_when_it_runs_again(tmp_path):
    seen = []
    target = Target("trial", lambda rng, folder: seen.append(rng.random()) or list)
    assert run_case(target, 7) == run_case(target, 7) == ("worked", "") and seen[0] == seen[1]
    run_case(target, 8)
    assert seen[2] != seen[0]


def test_hostile_pages_do_nothing_in_a_browser():
    browser = driver()
    if browser is None and not os.environ.get("CI"):
        pytest.skip("no browser here; install Debian's chromium and chromium-driver")
    counts, findings = look(3, browser)
    assert not findings and counts.total() == 3


def shown():
    """The committed rows of the campaign, by what was tried."""
    return {row["what"]: row for row in json.loads((ROOT / "results" / "hostile.json").read_text())}


def test_the_campaign_that_is_shown_ended_well():
    assert {name: row for name, row in shown().items() if any(row[kind] for kind in BAD)} == {}


@pytest.mark.slow  # after `python benchmarks/hostile.py`, which takes an hour
def test_the_campaign_that_is_shown_is_whole():
    rows = shown()
    assert {*TARGETS} <= {*rows}
    assert sum(rows[name]["tried"] for name in TARGETS) >= 100_000
    assert {name: rows[name]["tried"] for name in INTERRUPTED} == {
        name: max(30, rows[name]["tried"]) for name in INTERRUPTED
    }
