"""Readers of untrusted files: JSON, TOML, safetensors and `.npy`. Sizes are checked before memory is allocated.

A file that is too large, too deeply nested, not UTF-8, or not as its header claims raises a `DataError` with its path
and a remedy.
"""

from __future__ import annotations

import json
import math
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors import safe_open
from torch import Tensor

from fgai.errors import DataError

JSON_BYTES = 16 * 2**20  # also for the header of a safetensors file
TOML_BYTES = 2**16
TENSOR_BYTES = 8 * 2**30
TORCH_SAVE = (b"PK\x03\x04", b"\x80\x02\x8a\nl\xfc\x9cF")  # a zip file, or in old versions of torch a pickle
DEPTH = 32  # of nested lists and objects
TEXT = 100_000  # characters of one string
INTEGER = 2**63  # integers are below it and above its negative
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


@dataclass(frozen=True)
class Header:
    """The header of a safetensors file: type and shape of each tensor by name, and the metadata."""

    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    metadata: Mapping[str, str]


def refusal(path: object, why: object, remedy: str) -> DataError:
    """Return the error of a file that cannot be read, with at most 300 characters of the reason."""
    reason = str(why) or type(why).__name__
    return DataError(f"{path} cannot be read ({reason if len(reason) <= 300 else reason[:300] + '...'}); {remedy}")


def read_json(path: str | Path, remedy: str) -> Any:
    """Return the content of a JSON file."""
    return parse_json(_read_bytes(Path(path), JSON_BYTES, remedy), path, remedy)


def parse_json(content: bytes | str, where: object, remedy: str, *, infinite: bool = False) -> Any:
    """Return the value of a JSON text; duplicate keys are errors, and without `infinite` also NaN and infinity.

    >>> parse_json('{"a": [1, 2.5]}', "a.json", "write it again")
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1e400}', "a.json", "write it again")
    Traceback (most recent call last):
    fgai.errors.DataError: a.json cannot be read (1e400 is too large a number); write it again
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        constant = float if infinite else _refuse_constant
        value = json.loads(
            text, parse_int=_integer, parse_float=_float, parse_constant=constant, object_pairs_hook=_unique_keys
        )
        _check_limits(value)
    except (ValueError, RecursionError, MemoryError) as error:  # also text that is not UTF-8 or not JSON
        raise refusal(where, error, remedy) from error
    return value


def read_toml(path: str | Path, remedy: str) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        content = tomllib.loads(_read_bytes(Path(path), TOML_BYTES, remedy).decode("utf-8"), parse_float=_toml_float)
        _check_limits(content)
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, DataError):
            raise
        raise refusal(path, error, remedy) from error
    return content


def read_header(path: str | Path, remedy: str) -> Header:
    """Return the header of a safetensors file and check that its tensors fill the file; no tensor is read."""
    path = Path(path)
    size = _size(path, TENSOR_BYTES, remedy)
    with path.open("rb") as file:
        start = file.read(8)
        if start.startswith(TORCH_SAVE):
            how = "safetensors.torch.save_file(model.state_dict(), path) writes the tensors of a model as safetensors"
            raise refusal(path, "it is a file of torch.save, which may run code when it is loaded", how)
        length = int.from_bytes(start, "little")
        if not 2 <= length <= min(JSON_BYTES, size - 8):
            raise refusal(path, f"its header claims {length} bytes, but the file has {size}", remedy)
        raw = parse_json(file.read(length), path, remedy)
    try:
        metadata = raw.pop("__metadata__", {})
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("its metadata is not text")
        tensors = {name: _type_and_shape(name, entry) for name, entry in raw.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise refusal(path, error, remedy) from error
    claimed = sum(math.prod(shape) * dtype.itemsize for dtype, shape in tensors.values())
    if 8 + length + claimed != size:
        raise refusal(path, f"its tensors claim {claimed} bytes, but there are {size - 8 - length}", remedy)
    return Header(tensors, metadata)


def read_tensors(path: str | Path, remedy: str) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Return the tensors of a safetensors file by name, and its metadata; NaN and infinity are errors."""
    header = read_header(path, remedy)
    try:
        with safe_open(str(path), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in header.tensors}
    except Exception as error:  # of any kind that the parser raises
        raise refusal(path, error, remedy) from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            raise refusal(path, f"`{name[:100]}` holds numbers that are not finite", remedy)
        if tensor.dtype == torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
            raise refusal(path, f"`{name[:100]}` holds values other than true and false", remedy)
    return tensors, header.metadata


def all_finite(tensor: Tensor) -> bool:
    """Return whether all values of a dense tensor are finite, without a copy of a large one.

    >>> all_finite(torch.tensor([1.0, torch.nan])), all_finite(torch.ones(0))
    (False, True)
    """
    if tensor.dtype.itemsize < 2 or tensor.numel() == 0:
        return bool(tensor.isfinite().all())  # torch has no minimum of 8-bit floating-point numbers
    return bool(torch.stack(tensor.aminmax()).isfinite().all())  # the minimum is NaN if a value is


def read_array(path: str | Path, remedy: str, mode: str = "r") -> np.ndarray:
    """Return the memory-mapped array of an `.npy` file of numbers in native byte order."""
    path = Path(path)
    size = _size(path, None, remedy)
    try:
        with path.open("rb") as file:
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"version {version} of the format")
            shape, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)
            offset = file.tell()
        if dtype.kind not in "biuf" or not dtype.isnative or dtype.itemsize > 8:
            raise ValueError(f"an array of {dtype}, but numbers of at most 8 bytes in native byte order are required")
        if not all(type(length) is int and 0 <= length < INTEGER for length in shape):
            raise ValueError(f"the shape {shape}")
        if offset + math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{size} bytes, but its shape {list(shape)} needs {math.prod(shape) * dtype.itemsize}")
        return np.load(path, mmap_mode=mode, allow_pickle=False)  # pyright: ignore[reportArgumentType]
    except Exception as error:  # numpy evaluates the header, which can raise many kinds of errors
        raise refusal(path, error, remedy) from error


def _size(path: Path, limit: int | None, remedy: str) -> int:
    """Return the size of a regular file; refuse one above `limit` bytes."""
    try:
        about = path.stat()
        with path.open("rb") if stat.S_ISREG(about.st_mode) else _refuse_mode(about.st_mode):
            pass
    except (OSError, ValueError) as error:
        raise refusal(path, error, remedy) from error
    if limit is not None and about.st_size > limit:
        raise refusal(path, f"it has {about.st_size} bytes, and the limit is {limit}", remedy)
    return about.st_size


def _refuse_mode(mode: int) -> Any:
    raise OSError("it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file")


def _read_bytes(path: Path, limit: int, remedy: str) -> bytes:
    _size(path, limit, remedy)
    with path.open("rb") as file:
        return file.read(limit + 1)


def _type_and_shape(name: str, entry: Mapping[str, Any]) -> tuple[torch.dtype, tuple[int, ...]]:
    """Return the type and shape of a tensor in a header."""
    dtype, shape = DTYPES.get(str(entry["dtype"])), tuple(entry["shape"])
    if dtype is None or not all(type(length) is int and 0 <= length < INTEGER for length in shape):
        raise ValueError(f"`{name[:100]}` is {str(entry['dtype'])[:20]} of shape {str(list(shape))[:100]}")
    return dtype, shape


def _integer(text: str) -> int:
    if len(text) > 20 or not -INTEGER < (value := int(text)) < INTEGER:
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _toml_float(text: str) -> float:
    return _float(text.replace("_", ""))


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("an object has a duplicate key")
    return entries


def _check_limits(value: Any) -> None:
    """Check the depth, the size of integers, and the length and encoding of strings."""
    level = [value]
    for _ in range(DEPTH):
        texts = [part for part in level if isinstance(part, str)]
        inside = [part for part in level if isinstance(part, dict)]
        texts += [name for part in inside for name in part]
        if any(len(text) > TEXT for text in texts):
            raise ValueError(f"it has a string of more than {TEXT} characters")
        if any(type(part) is int and not -INTEGER < part < INTEGER for part in level):
            raise ValueError("it has a number that is too large")
        "".join(texts).encode()  # raises for half of a surrogate pair
        level = [item for part in level if isinstance(part, list) for item in part]
        level += [item for part in inside for item in part.values()]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEPTH} levels")
