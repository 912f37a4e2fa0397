import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgai.bench.results import Row, peak_mb, read_rows, versions, write_rows

words = st.sampled_from(["cora", "gat", "fgai", "none"])
rows = st.builds(
    Row,
    dataset=words,
    backbone=words,
    method=words,
    seed=st.integers(0, 11),
    attack=words,
    preset=words,
    metrics=st.dictionaries(words, st.none() | st.floats(allow_nan=False, allow_infinity=False)),
    seconds=st.floats(0, 1e6),
    settings=st.dictionaries(words, words | st.booleans()),
    versions=st.just({"fgai": "0"}),
)


def row(seed, **more):
    return Row("cora", "gat", "vanilla", seed, {"f1": 0.5, "auc": None}, **more)


@given(st.lists(rows, max_size=6))
def test_rows_are_read_back_as_written_sorted_the_last_of_a_key(tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("rows") / "a.json"
    write_rows(path, drawn)
    names = ("dataset", "backbone", "method", "preset", "seed", "attack")
    last = {tuple(getattr(each, name) for name in names): each for each in drawn}
    assert read_rows(path) == [last[key] for key in sorted(last)]
    assert json.loads(path.read_text()) == [asdict(last[key]) for key in sorted(last)]


def test_seeds_are_sorted_as_numbers(tmp_path):
    write_rows(tmp_path / "a.json", [row(10), row(9), row(-1)])
    assert [each.seed for each in read_rows(tmp_path / "a.json")] == [-1, 9, 10]


def test_a_second_run_of_a_row_takes_its_place_and_the_others_stay(tmp_path):
    path = tmp_path / "deep" / "a.json"
    write_rows(path, [row(0), row(1)])
    again = replace(row(1), metrics={"f1": 0.75})
    others = [row(1, attack="strongest"), row(1, preset="strong")]
    write_rows(path, [*others, again])
    assert read_rows(path) == [row(0), again, *others]


def test_the_file_does_not_depend_on_the_order_of_the_rows(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_rows(one, [row(0), row(1), row(2)])
    for seed in (2, 0, 1):
        write_rows(two, [row(seed)])
    assert one.read_bytes() == two.read_bytes()


def test_a_metric_that_is_not_a_number_is_refused_and_the_rows_stay(tmp_path):
    path = tmp_path / "a.json"
    write_rows(path, [row(0)])
    with pytest.raises(ValueError, match="JSON"):
        write_rows(path, [replace(row(1), metrics={"f1": float("nan")})])
    assert read_rows(path) == [row(0)]


def test_a_file_that_is_not_there_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "none.json") == []


def test_a_row_says_what_it_was_made_with():
    assert row(0).versions == versions()
    assert versions()["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert 10 < peak_mb() < 1e6


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="ru_maxrss is used there")
def test_the_peak_memory_of_a_process_is_not_that_of_its_parent():
    """With `ru_maxrss` it was: two programs that a large one started had the same peak."""
    program = "from fgai.bench.results import peak_mb; print(peak_mb())"
    alone = float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
    large = b"1" * int((alone + 300) * 2**20)
    started = float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
    assert started < alone + 100 < peak_mb()
    assert len(large) > 0
