"""Other behaviour for a layer of a user's model, for the length of a `with` block.

No global is patched and no attribute is set: a layer gets a generated subclass of its own class, and its own class back
when the block ends. Copies and pickles that are made inside the block are of its own class.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from torch import nn
from torch_geometric.nn import MessagePassing


class Hook:
    """A hook of ours: copies of a layer go without it."""


HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_propagate_forward_pre_hooks")  # where ours are
PLAIN = "_fgai_plain"  # the attribute of a generated class that names the class it stands for


def subclass(plain: type, methods: Mapping[str, Any], bases: tuple[type, ...] | None = None) -> type:
    """A subclass of `plain` with other methods; its layers are copied and pickled as layers of `plain`."""
    ours = {"__deepcopy__": _deepcopy, "__reduce_ex__": _reduce_ex, PLAIN: plain}
    return type(plain.__name__, bases or (plain,), {**methods, **ours})


def is_patched(layer: nn.Module) -> bool:
    """The layer is of a generated class now."""
    return PLAIN in vars(type(layer))


@contextmanager
def swapped_class(layer: nn.Module, cls: type) -> Iterator[None]:
    """For the length of a block, a layer is of another class.

    >>> layer = nn.Linear(1, 1)
    >>> with swapped_class(layer, subclass(nn.Linear, {"forward": lambda self, x: 2 * x})):
    ...     twice, copied = layer(1.0), copy.deepcopy(layer)
    >>> twice, type(layer) is nn.Linear, type(copied) is nn.Linear
    (2.0, True, True)
    """
    plain = type(layer)
    layer.__class__ = cls
    try:
        yield
    finally:
        layer.__class__ = plain


def with_globals(function: FunctionType, others: Mapping[Any, Any]) -> FunctionType:
    """The same code in a scope where some global functions are others."""
    scope = {
        name: others.get(value, value) if callable(value) else value for name, value in function.__globals__.items()
    }
    clone = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    clone.__kwdefaults__ = function.__kwdefaults__
    return clone


def message_passing_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost message-passing layers, by name; everything else treats each node by itself.

    >>> from torch_geometric.nn.models import GAT
    >>> list(message_passing_layers(GAT(3, 4, num_layers=2)))
    ['convs.0', 'convs.1']
    """
    found: dict[str, nn.Module] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, MessagePassing) and not any(name.startswith(f"{outer}.") for outer in found):
            found[name] = layer
    return found


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    with _unpatched(self):
        return copy.deepcopy(self, memo)


def _reduce_ex(self: Any, protocol: Any) -> Any:
    with _unpatched(self):
        reduced = list(self.__reduce_ex__(protocol))
        if reduced[0].__name__ == "__newobj__":  # pickle would compare the class with that of the layer
            reduced[0] = object.__new__
        if len(reduced) > 2 and isinstance(reduced[2], dict):  # it is pickled after this block, with our hooks back
            reduced[2] = {name: copy.copy(found) if name in HOOKS else found for name, found in reduced[2].items()}
        return tuple(reduced)


@contextmanager
def _unpatched(layer: Any) -> Iterator[None]:
    """For the length of a block, a patched layer is as it was before."""
    hooks = {name: vars(layer)[name] for name in HOOKS if name in vars(layer)}
    ours = {number for found in hooks.values() for number, hook in found.items() if isinstance(hook, Hook)}
    with swapped_class(layer, vars(type(layer))[PLAIN]):
        for name, found in hooks.items():
            vars(layer)[name] = type(found)((number, hook) for number, hook in found.items() if number not in ours)
        try:
            yield
        finally:
            vars(layer).update(hooks)
