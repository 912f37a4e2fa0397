import json
import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fgai.errors import DataError
from fgai.readers import JSON_BYTES, TEXT, parse_json, read_array, read_header, read_json, read_tensors, read_toml
from fgai.records import record

SAY = "write it again"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 40 + b"]" * 40,
        b"NaN",
        b"[-Infinity]",
        b"1e400",
        b"1" * 30,
        b"9" * 5_000,
        b"\xff\xfe[]",
        b'"\xc3"',
        rb'"\ud800"',
        b'{"a": 1, "a": 2}',
        b'"' + b"x" * (TEXT + 1) + b'"',
    ],
    ids=lambda content: content[:12].decode("latin-1"),
)
def test_json_that_cannot_be_used_is_refused_with_its_name_and_a_remedy(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.json cannot be read \(.+\); write it again"):
        read_json(tmp_path / "a.json", SAY)


def test_a_file_that_is_none_or_too_large_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(JSON_BYTES + 1)
    for name, why in (
        ("pipe", "not a regular file"),
        ("large", "the limit is"),
        ("none", "No such file"),
        (".", "a folder"),
    ):
        with pytest.raises(DataError, match=why):
            read_json(tmp_path / name, SAY)


@pytest.mark.parametrize("content", ["a = " + "[" * 5_000, "a = 1e999", f"a = {10**30}", "a", "a = 1\na = 2", "\ufffe"])
def test_toml_that_cannot_be_used_is_refused(tmp_path, content):
    (tmp_path / "a.toml").write_text(content)
    with pytest.raises(DataError, match="write it again"):
        read_toml(tmp_path / "a.toml", SAY)


def header_of(path, **claims):
    """A safetensors file whose header claims what it likes, with eight bytes behind it."""
    text = json.dumps(claims).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))


@pytest.mark.parametrize(
    "claim",
    [
        {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]},
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]},
        {"dtype": ["F32"], "shape": [2]},
        7,
    ],
    ids=str,
)
def test_a_header_that_the_file_does_not_bear_out_is_refused(tmp_path, claim):
    header_of(tmp_path / "a.safetensors", a=claim)
    with pytest.raises(DataError, match="cannot be read"):
        read_tensors(tmp_path / "a.safetensors", SAY)


def test_a_header_is_read_without_its_tensors(tmp_path):
    save_file({"a": torch.ones(2, 3)}, tmp_path / "a.safetensors", {"about": "it"})
    found = read_header(tmp_path / "a.safetensors", SAY)
    assert found.tensors == {"a": (torch.float32, (2, 3))} and found.metadata == {"about": "it"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_tensors_that_are_not_finite_are_refused(tmp_path, value):
    save_file({"a": torch.tensor([1.0, value])}, tmp_path / "a.safetensors")
    with pytest.raises(DataError, match="`a` holds numbers that are not finite"):
        read_tensors(tmp_path / "a.safetensors", SAY)


def npy(header, data=bytes(8)):
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY\x09\x09",
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}"),
        npy("{'descr': '>f8', 'fortran_order': False, 'shape': (1,)}"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
        npy("{'descr': '<U2', 'fortran_order': False, 'shape': (1,)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,"),
        npy("'''"),
        npy("(" * 110),
    ],
    ids=lambda content: content[10:80].decode("latin-1"),
)
def test_an_array_that_the_file_does_not_bear_out_is_refused(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npy cannot be read"):
        read_array(tmp_path / "a.npy", SAY)


def test_an_array_is_mapped(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    assert read_array(tmp_path / "a.npy", SAY).tolist() == [[0, 1, 2], [3, 4, 5]]


@dataclass(frozen=True)
class Inner:
    weights: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    size: int = 3


GOOD = {"name": "a", "inner": {"weights": [[1, None], [2, 0.5]]}}


def test_a_record_is_built_with_its_tuples_and_defaults():
    assert record(Outer, GOOD, "a.json", SAY) == Outer("a", Inner(((1, None), (2, 0.5))), 3)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"name": 1}, "`name` is 1, but str is required"),
        ({"name": None}, "`name` is None"),
        ({"size": True}, "`size` is True, but int is required"),
        ({"size": 1.0}, "`size` is 1.0"),
        ({"inner": []}, r"`inner` is \[\], but an object"),
        ({"inner": {"weights": [[1]]}}, r"`inner.weights\[0\]` has 1 entries, but 2"),
        ({"inner": {"weights": [[1, 2], ["x", 2]]}}, r"`inner.weights\[1\]\[0\]` is 'x', but int"),
        ({"other": 1}, "it has .'other'., but may have only name, inner, size"),
    ],
    ids=str,
)
def test_an_entry_of_another_type_is_named(changed, why):
    with pytest.raises(DataError, match=f"a.json: {why}.*; write it again"):
        record(Outer, GOOD | changed, "a.json", SAY)


def test_a_long_entry_is_shortened_in_the_message():
    with pytest.raises(DataError) as refused:
        record(Outer, GOOD | {"size": "x" * 90_000, "inner": ["y" * 1_000] * 50}, "a.json", SAY)
    assert len(str(refused.value)) < 400
    with pytest.raises(DataError) as refused:
        parse_json("x" * 90_000, "a.json", SAY)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_recognised(tmp_path, zipped):
    torch.save({"a": torch.ones(2)}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(DataError, match=r"w\.pt cannot be read \(it is a file of torch\.save.+save_file"):
        read_tensors(tmp_path / "w.pt", SAY)
