import json
import resource
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest

from fgai.errors import OutputError
from fgai.files import atomic_folder, atomic_write, try_output, write_json


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


SLOW = """
import sys, time
from pathlib import Path
from fgai.files import atomic_folder, atomic_write
with (atomic_folder if sys.argv[2] == "folder" else atomic_write)(Path(sys.argv[1])) as half:
    print("begun", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path, kind):
    path = tmp_path / "a.json"
    write = atomic_folder if kind == "folder" else atomic_write
    run = [sys.executable, "-c", SLOW, str(path), kind]
    writers = [subprocess.Popen(run, stdout=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"begun\n"
    writers[0].kill()
    writers[0].wait()
    (tmp_path / ".a.json.notes.half").write_text("a user's own")
    assert len(list(tmp_path.iterdir())) == 3
    with write(path):
        assert len(list(tmp_path.iterdir())) == 3  # the living one's, ours, the user's
    writers[1].kill()
    writers[1].wait()
    for writer in writers:
        writer.stdout.close()
    shutil.rmtree(path) if kind == "folder" else path.unlink()
    with write(path):
        pass
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".a.json.notes.half", "a.json"]


def test_a_folder_that_another_writer_removes_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    create, made = tempfile.mkdtemp, []

    def removed_once(**options):
        made.append(create(**options))
        if len(made) == 1:
            shutil.rmtree(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", removed_once)
    with atomic_folder(tmp_path / "out") as half:
        (half / "a").write_text("a")
    assert len(made) == 2 and (tmp_path / "out" / "a").read_text() == "a"


def limited(size):
    """The work of another process that may write files of `size` bytes only."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_is_a_sentence_and_the_old_file_stays(tmp_path):
    write_json(tmp_path / "a.json", "old")
    code = "import sys; from pathlib import Path; from fgai.files import write_json\n"
    code += "try: write_json(Path(sys.argv[1]), 'x' * 200_000)\nexcept Exception as e: print(type(e).__name__, e)"
    run = [sys.executable, "-c", code, str(tmp_path / "a.json")]
    done = subprocess.run(run, capture_output=True, text=True, preexec_fn=limited(100_000))
    assert done.stdout.startswith("OutputError") and "a.json cannot be written (File too large)" in done.stdout
    assert json.loads((tmp_path / "a.json").read_text()) == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "a.json"]


def test_an_output_is_tried_and_nothing_stays(tmp_path):
    (tmp_path / "file").write_text("")
    try_output(tmp_path / "new" / "deep" / "a.json")
    try_output(tmp_path / "file")
    try_output(tmp_path, folder=True)
    for path, folder in (
        (tmp_path, False),
        (tmp_path / "file", True),
        (tmp_path / "file" / "a.json", False),
        ("/proc/a.json", False),
        (tmp_path / ("n" * 300) / "a.json", False),
    ):
        with pytest.raises(OutputError, match="cannot be written"):
            try_output(path, folder=folder)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
