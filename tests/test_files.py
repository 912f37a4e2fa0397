import json
import stat

import pytest

from fgai.files import atomic_write, write_json


def write_and_stop(half):
    half.write_text("new")
    raise KeyboardInterrupt


def test_a_file_appears_only_at_the_end_and_whole(tmp_path):
    path = tmp_path / "deep" / "er" / "a.txt"
    with atomic_write(path) as half:
        half.write_text("half")
        assert not path.exists()
        assert half.parent == path.parent  # a rename within one file system is atomic
        half.write_text("all of it")
    assert path.read_text() == "all of it"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as half:
        write_and_stop(half)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_in_the_first_writing_leaves_no_file(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "a.txt") as half:
        write_and_stop(half)
    assert not list(tmp_path.iterdir())


def test_others_may_read_a_written_file(tmp_path):
    write_json(tmp_path / "a.json", {})
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o644


def test_json_is_sorted_one_entry_a_line_and_ends_with_a_newline(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, 2.5], "a": None})
    assert (tmp_path / "a.json").read_text() == '{\n "a": null,\n "b": [\n  1,\n  2.5\n ]\n}\n'
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": None, "b": [1, 2.5]}


@pytest.mark.parametrize("content", [float("nan"), [float("inf")], {"a": object()}])
def test_what_json_cannot_say_is_refused_and_the_old_file_stays(tmp_path, content):
    path = tmp_path / "a.json"
    write_json(path, "old")
    with pytest.raises((ValueError, TypeError)):
        write_json(path, content)
    assert json.loads(path.read_text()) == "old"
    assert list(tmp_path.iterdir()) == [path]
