"""Replaces methods of a layer of a user's model inside a `with` block.

No global is patched and no attribute is set. The layer gets a generated subclass of its class, and its original class
back when the block ends. Copies and pickles made inside the block have the original class.
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
    """Base class of the hooks that fgai registers. Copies and pickles of a layer do not contain them."""


HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_propagate_forward_pre_hooks",
)  # where they are registered
PLAIN = "_fgai_plain"  # attribute of a generated class: the original class


def subclass(plain: type, methods: Mapping[str, Any], bases: tuple[type, ...] | None = None) -> type:
    """Return a subclass of `plain` with the given methods. Its instances are copied and pickled as `plain`."""
    copying = {"__deepcopy__": _deepcopy, "__reduce_ex__": _reduce_ex, PLAIN: plain}
    return type(plain.__name__, bases or (plain,), {**methods, **copying})


def is_patched(layer: nn.Module) -> bool:
    """Return whether the layer has a generated class."""
    return PLAIN in vars(type(layer))


@contextmanager
def swapped_class(layer: nn.Module, cls: type) -> Iterator[None]:
    """Give a layer another class inside a `with` block.

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


def with_globals(function: FunctionType, replacements: Mapping[Any, Any]) -> FunctionType:
    """Return a copy of a function that uses `replacements[f]` in place of each global function or module `f`."""
    by_id = {id(value): other for value, other in replacements.items()}  # a global need not be hashable
    scope = {name: by_id.get(id(value), value) for name, value in function.__globals__.items()}
    clone = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    clone.__kwdefaults__ = function.__kwdefaults__
    return clone


def message_passing_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost message-passing layers, by name. All other modules process each node separately.

    >>> from torch_geometric.nn.models import GAT
    >>> list(message_passing_layers(GAT(3, 4, num_layers=2)))
    ['convs.0', 'convs.1']
    """
    layers: dict[str, nn.Module] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, MessagePassing) and not any(name.startswith(f"{outer}.") for outer in layers):
            layers[name] = layer
    return layers


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    with _unpatched(self):
        return copy.deepcopy(self, memo)


def _reduce_ex(self: Any, protocol: Any) -> Any:
    with _unpatched(self):
        reduced = list(self.__reduce_ex__(protocol))
        if reduced[0].__name__ == "__newobj__":  # pickle requires that its class is the layer's
            reduced[0] = object.__new__
        if len(reduced) > 2 and isinstance(reduced[2], dict):  # pickled after this block, when the hooks are back
            reduced[2] = {name: copy.copy(value) if name in HOOKS else value for name, value in reduced[2].items()}
        return tuple(reduced)


@contextmanager
def _unpatched(layer: Any) -> Iterator[None]:
    """Restore a patched layer's class and hooks inside a `with` block."""
    hooks = {name: vars(layer)[name] for name in HOOKS if name in vars(layer)}
    own = {number for registry in hooks.values() for number, hook in registry.items() if isinstance(hook, Hook)}
    with swapped_class(layer, vars(type(layer))[PLAIN]):
        for name, registry in hooks.items():
            rest = ((number, hook) for number, hook in registry.items() if number not in own)
            vars(layer)[name] = type(registry)(rest)
        try:
            yield
        finally:
            vars(layer).update(hooks)
