"""Files from elsewhere: JSON, TOML, safetensors and `.npy`, each checked before memory is taken for what it claims.

Every reader refuses what is too large, too deeply nested, not UTF-8, or not what its header says, with a `DataError`
that names the file and the remedy.
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

JSON_BYTES = 16 * 2**20  # also the header of a safetensors file
TOML_BYTES = 2**16
TENSOR_BYTES = 8 * 2**30
DEPTH = 32  # of lists and objects within each other
TEXT = 100_000  # characters of one string
INTEGER = 2**63  # integers lie below, and above its negative
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
    """What a safetensors file says of its tensors: type and shape by name, and its metadata."""

    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    metadata: Mapping[str, str]


def refusal(path: object, why: object, remedy: str) -> DataError:
    """The error of a file that cannot be read: its name, the reason, at most 300 characters of it, what to do."""
    said = str(why) or type(why).__name__
    return DataError(f"{path} cannot be read ({said if len(said) <= 300 else said[:300] + '...'}); {remedy}")


def read_json(path: str | Path, remedy: str) -> Any:
    """The content of a JSON file."""
    return parse_json(_content(Path(path), JSON_BYTES, remedy), path, remedy)


def parse_json(content: bytes | str, where: object, remedy: str, *, infinite: bool = False) -> Any:
    """The value of a JSON text; numbers that are not finite are refused unless `infinite`, names given twice always.

    >>> parse_json('{"a": [1, 2.5]}', "a.json", "write it again")
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1e400}', "a.json", "write it again")
    Traceback (most recent call last):
    fgai.errors.DataError: a.json cannot be read (1e400 is too large a number); write it again
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        constant = float if infinite else _no_constant
        found = json.loads(
            text, parse_int=_integer, parse_float=_float, parse_constant=constant, object_pairs_hook=_once
        )
        _check(found)
    except (ValueError, RecursionError, MemoryError) as error:  # also what is not UTF-8 and not JSON
        raise refusal(where, error, remedy) from error
    return found


def read_toml(path: str | Path, remedy: str) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        found = tomllib.loads(_content(Path(path), TOML_BYTES, remedy).decode("utf-8"), parse_float=_toml_float)
        _check(found)
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, DataError):
            raise
        raise refusal(path, error, remedy) from error
    return found


def read_header(path: str | Path, remedy: str) -> Header:
    """The header of a safetensors file, whose tensors together fill the file; no tensor is read."""
    path = Path(path)
    size = _size(path, TENSOR_BYTES, remedy)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(JSON_BYTES, size - 8):
            raise refusal(path, f"its header would have {length} bytes, and the file has {size}", remedy)
        raw = parse_json(file.read(length), path, remedy)
    try:
        metadata = raw.pop("__metadata__", {})
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("its metadata is not text")
        tensors = {name: _claim(name, claim) for name, claim in raw.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise refusal(path, error, remedy) from error
    claimed = sum(math.prod(shape) * dtype.itemsize for dtype, shape in tensors.values())
    if 8 + length + claimed != size:
        raise refusal(path, f"its tensors would have {claimed} bytes, and there are {size - 8 - length}", remedy)
    return Header(tensors, metadata)


def read_tensors(path: str | Path, remedy: str) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """The tensors of a safetensors file by name, and its metadata; NaN and infinite numbers are refused."""
    header = read_header(path, remedy)
    try:
        with safe_open(str(path), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in header.tensors}
    except Exception as error:  # whatever the parser says, the file is not one
        raise refusal(path, error, remedy) from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise refusal(path, f"`{name[:100]}` holds numbers that are not finite", remedy)
        if tensor.dtype == torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
            raise refusal(path, f"`{name[:100]}` holds what is neither true nor false", remedy)
    return tensors, header.metadata


def read_array(path: str | Path, remedy: str, mode: str = "r") -> np.ndarray:
    """An `.npy` file of numbers in this machine's byte order, memory-mapped."""
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
            raise ValueError(f"an array of {dtype}, and numbers of at most 8 bytes in native byte order are needed")
        if not all(type(length) is int and 0 <= length < INTEGER for length in shape):
            raise ValueError(f"the shape {shape}")
        if offset + math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{size} bytes, and its shape {list(shape)} needs {math.prod(shape) * dtype.itemsize}")
        return np.load(path, mmap_mode=mode, allow_pickle=False)  # pyright: ignore[reportArgumentType]
    except Exception as error:  # numpy evaluates the header: syntax, tokens, recursion, memory
        raise refusal(path, error, remedy) from error


def _size(path: Path, limit: int | None, remedy: str) -> int:
    try:
        about = path.stat()
        with path.open("rb") if stat.S_ISREG(about.st_mode) else _no_file(about.st_mode):
            pass
    except (OSError, ValueError) as error:
        raise refusal(path, error, remedy) from error
    if limit is not None and about.st_size > limit:
        raise refusal(path, f"{about.st_size} bytes, and such a file has at most {limit}", remedy)
    return about.st_size


def _no_file(mode: int) -> Any:
    raise OSError("it is a folder" if stat.S_ISDIR(mode) else "it is no regular file")


def _content(path: Path, limit: int, remedy: str) -> bytes:
    _size(path, limit, remedy)
    with path.open("rb") as file:
        return file.read(limit + 1)


def _claim(name: str, claim: Mapping[str, Any]) -> tuple[torch.dtype, tuple[int, ...]]:
    """The type and shape that a header gives a tensor."""
    dtype, shape = DTYPES.get(str(claim["dtype"])), tuple(claim["shape"])
    if dtype is None or not all(type(length) is int and 0 <= length < INTEGER for length in shape):
        raise ValueError(f"`{name[:100]}` is {str(claim['dtype'])[:20]} of shape {str(list(shape))[:100]}")
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


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object names an entry twice")
    return found


def _check(found: Any) -> None:
    """No deeper than `DEPTH`, no string longer than `TEXT`, and every string can be written as UTF-8."""
    level = [found]
    for _ in range(DEPTH):
        texts = [part for part in level if isinstance(part, str)]
        inside = [part for part in level if isinstance(part, dict)]
        texts += [name for part in inside for name in part]
        if any(len(text) > TEXT for text in texts):
            raise ValueError(f"it holds a text of more than {TEXT} characters")
        if any(type(part) is int and not -INTEGER < part < INTEGER for part in level):
            raise ValueError("it holds too large a number")
        "".join(texts).encode()  # half of a surrogate pair cannot be
        level = [item for part in level if isinstance(part, list) for item in part]
        level += [item for part in inside for item in part.values()]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEPTH} levels")
