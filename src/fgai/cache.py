"""One cache of what was computed from tensors, and notes on what a tensor is made of. Neither keeps a tensor alive.

An attack reads the same graph hundreds of times. Sorted edges, self-loops and the products of rows that do not change
are computed once and looked up afterwards.
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
    """Results of functions of tensors, found again while those tensors are alive and unchanged.

    A tensor is known by its memory (storage, offset, shape, strides and dtype), so a view or a detached copy of the
    same values finds the same result. An entry is dropped when the memory of one of its tensors is freed, replaced when
    one was changed in place (torch's version counter; a change through `.data` is not seen), and evicted when `size`
    others were used since. A result must not hold the memory of a tensor that it is looked up by: it would keep itself
    alive until it is evicted. A deep copy or a pickle of a cache is empty.

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
        """Drops all results."""
        self._entries.clear()

    def __reduce__(self) -> tuple[type[TensorCache], tuple[int]]:
        return TensorCache, (self._size,)

    def get(
        self, name: Hashable, tensors: Sequence[Tensor], make: Callable[[], T], *, equal: Sequence[Tensor] = ()
    ) -> T:
        """The result of `make()`, computed without gradients unless it is known for `name` and these tensors.

        The tensors in `equal` are compared by value: for operands that the model computes anew in each pass. Nothing is
        cached where a gradient is asked of one of the tensors, or where one has no memory of its own.
        """
        dense = [part for tensor in tensors for part in _dense_parts(tensor)]
        storages = _storages(dense)
        if storages is None or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in dense)):
            return make()
        key = (name, *map(_place, dense, storages))
        versions = tuple(map(version, dense))
        entry = self._entries.pop(key, None)
        if entry is None or entry.versions != versions or not _all_equal(entry.equal, equal):
            drop = partial(_drop, weakref.ref(self), key)
            with torch.no_grad():
                marked = [(other, version(other)) for other in equal]
                entry = _Entry(versions, marked, make(), [weakref.ref(storage, drop) for storage in storages])
        self._entries[key] = entry
        if len(self._entries) > self._size:
            self._entries.pop(next(iter(self._entries)))
        return entry.value


class TensorNotes:
    """What is known of very tensor objects, until they are changed in place. Copies and pickles carry nothing of it.

    >>> notes, x = TensorNotes(), torch.ones(2)
    >>> notes.set(x, "ones")
    >>> notes.get(x), notes.get(x.clone())
    ('ones', None)
    """

    def __init__(self) -> None:
        self._notes: dict[int, tuple[weakref.ref[Tensor], int, Any]] = {}

    def set(self, tensor: Tensor, note: Any) -> None:
        """Notes something of a tensor."""
        key = id(tensor)
        self._notes[key] = (weakref.ref(tensor, lambda _: self._notes.pop(key, None)), version(tensor), note)

    def get(self, tensor: Any) -> Any:
        """What was noted of this object, or None."""
        known, then, note = self._notes.get(id(tensor), (None, 0, None))
        return note if known is not None and known() is tensor and version(tensor) == then else None


def version(x: Tensor) -> int:
    """How often a tensor was changed in place; torch does not count changes in its inference mode."""
    return 0 if x.is_inference() else x._version


@dataclass(frozen=True)
class _Entry:
    versions: tuple[int, ...]
    equal: list[tuple[Tensor, int]]
    value: Any
    refs: list[weakref.ref[Any]]  # their callbacks drop the entry


def _drop(cache: weakref.ref[TensorCache], key: Hashable, _: object) -> None:
    if (found := cache()) is not None:
        found._entries.pop(key, None)


def _dense_parts(x: Tensor) -> tuple[Tensor, ...]:
    return (x._indices(), x._values()) if x.layout == torch.sparse_coo else (x,)


def _storages(tensors: Sequence[Tensor]) -> list[Any] | None:
    try:
        return [tensor.untyped_storage() for tensor in tensors]
    except RuntimeError:  # sparse by rows, or inside one of torch's transforms
        return None


def _place(x: Tensor, storage: Any) -> Hashable:
    return id(storage), x.storage_offset(), x.shape, x.stride(), x.dtype


def _all_equal(known: Sequence[tuple[Tensor, int]], now: Sequence[Tensor]) -> bool:
    return len(known) == len(now) and all(_equal(x, then, other) for (x, then), other in zip(known, now, strict=True))


def _equal(x: Tensor, then: int, now: Tensor) -> bool:
    """A tensor that has not changed since has the values of this one."""
    if version(x) != then or x.shape != now.shape or x.dtype != now.dtype:
        return False
    if x.layout != torch.strided or now.layout != torch.strided:
        return x is now
    return (x.data_ptr() == now.data_ptr() and x.stride() == now.stride()) or torch.equal(x, now)
