"""A cache of results computed from tensors, and notes attached to tensors. Neither keeps a tensor alive.

An attack reads the same graph hundreds of times. Sorted edges, self-loops and the products of unchanged rows are
computed once and looked up afterwards.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class TensorCache:
    """Least-recently-used cache of results of functions of tensors.

    A tensor is identified by its memory (storage, offset, shape, strides and dtype), so a view or `detach()` of the
    same memory returns the same result. An entry is dropped when the memory of one of its tensors is freed, recomputed
    when one of them changed in place (torch's version counter; changes through `.data` are not detected), and evicted
    when `size` other entries were used more recently. A result must not share memory with the tensors that identify
    it: the entry would keep itself alive until it is evicted. A deep copy or a pickle of a cache is empty.

    Args:
        size: The maximum number of entries.

    >>> cache, x = TensorCache(), torch.ones(2)
    >>> cache.get("sum", [x], lambda: x.sum()) is cache.get("sum", [x], lambda: x.sum())
    True
    >>> x += 1
    >>> cache.get("sum", [x], lambda: x.sum())
    tensor(4.)
    >>> del x
    >>> len(cache)
    0
    """

    def __init__(self, size: int = 1024) -> None:
        self._size = size
        self._entries: dict[Hashable, _Entry] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Drop all results."""
        self._entries.clear()

    def __reduce__(self) -> tuple[type[TensorCache], tuple[int]]:
        return TensorCache, (self._size,)

    def get(
        self, name: Hashable, tensors: Sequence[Tensor], make: Callable[[], T], *, equal: Sequence[Tensor] = ()
    ) -> T:
        """Return the cached result for `name` and `tensors`, or compute it with `make()` without gradients.

        Nothing is cached if one of the tensors requires a gradient or has no storage; `make()` then runs as usual.

        Args:
            name: Identifies the function and its settings.
            tensors: The inputs, identified by memory.
            make: Computes the result.
            equal: Further inputs, compared by value: operands that the model recomputes in each pass.

        Returns:
            The result of `make()`.
        """
        dense = [part for tensor in tensors for part in _dense_parts(tensor)]
        storages = _storages(dense)
        if storages is None or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in dense)):
            return make()
        key = (name, *map(_memory_key, dense, storages))
        versions = tuple(map(version, dense))
        entry = self._entries.pop(key, None)
        if entry is None or entry.versions != versions or not _all_equal(entry.equal, equal):
            drop = partial(_drop, weakref.ref(self), key)
            with torch.no_grad():
                operands = [(other, version(other)) for other in equal]
                entry = _Entry(versions, operands, make(), [weakref.ref(storage, drop) for storage in storages])
        self._entries[key] = entry
        if len(self._entries) > self._size:
            self._entries.pop(next(iter(self._entries)))
        return entry.value


class TensorNotes:
    """Notes on tensor objects, valid until the tensor changes in place. Copies and pickles of a tensor have no note.

    >>> notes, x = TensorNotes(), torch.ones(2)
    >>> notes.set(x, "ones")
    >>> notes.get(x), notes.get(x.clone())
    ('ones', None)
    """

    def __init__(self) -> None:
        self._notes: dict[int, tuple[weakref.ref[Tensor], int, Any]] = {}

    def set(self, tensor: Tensor, note: Any) -> None:
        """Attach a note to a tensor."""
        key = id(tensor)
        self._notes[key] = (weakref.ref(tensor, lambda _: self._notes.pop(key, None)), version(tensor), note)

    def get(self, tensor: Any) -> Any:
        """Return the note of this tensor object, or None if it has none or has changed since."""
        ref, noted_version, note = self._notes.get(id(tensor), (None, 0, None))
        return note if ref is not None and ref() is tensor and version(tensor) == noted_version else None


def version(x: Tensor) -> int:
    """Return how often a tensor changed in place; 0 for inference tensors, whose changes torch does not count."""
    return 0 if x.is_inference() else x._version


@dataclass(frozen=True)
class _Entry:
    """One cached result."""

    versions: tuple[int, ...]
    equal: list[tuple[Tensor, int]]
    value: Any
    refs: list[weakref.ref[Any]]  # their callbacks drop the entry


def _drop(cache: weakref.ref[TensorCache], key: Hashable, _: object) -> None:
    if (alive := cache()) is not None:
        alive._entries.pop(key, None)


def _dense_parts(x: Tensor) -> tuple[Tensor, ...]:
    return (x._indices(), x._values()) if x.layout == torch.sparse_coo else (x,)


def _storages(tensors: Sequence[Tensor]) -> list[Any] | None:
    try:
        return [tensor.untyped_storage() for tensor in tensors]
    except RuntimeError:  # a CSR tensor, or inside a torch.func transform
        return None


def _memory_key(x: Tensor, storage: Any) -> Hashable:
    return id(storage), x.storage_offset(), x.shape, x.stride(), x.dtype


def _all_equal(known: Sequence[tuple[Tensor, int]], now: Sequence[Tensor]) -> bool:
    return len(known) == len(now) and all(_equal(*entry, other) for entry, other in zip(known, now, strict=True))


def _equal(x: Tensor, noted_version: int, now: Tensor) -> bool:
    """Return whether `x` is unchanged since it was noted and has the values of `now`."""
    if version(x) != noted_version or x.shape != now.shape or x.dtype != now.dtype:
        return False
    if x.layout != torch.strided or now.layout != torch.strided:
        return x is now
    return (x.data_ptr() == now.data_ptr() and x.stride() == now.stride()) or torch.equal(x, now)
