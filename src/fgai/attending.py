"""Finds the modules of a model that attend: those whose attention the tap reads, and those that it cannot read."""

from __future__ import annotations

from dis import get_instructions
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import (
    ASAPooling,
    DenseGATConv,
    DNAConv,
    EdgePooling,
    FAConv,
    HypergraphConv,
    JumpingKnowledge,
    MessagePassing,
    SAGPooling,
)
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.models.lpformer import LPAttLayer
from torch_geometric.nn.pool.select import SelectTopK
from torch_geometric.utils import softmax

from fgai.kernels import segmented_softmax
from fgai.patching import PLAIN, Hook

SOFTMAXES = (softmax, segmented_softmax)  # PyG's, and the one that accelerated layers call
# Layers of PyG whose attention is not over the edges of a node, or has no softmax; the last three in one setting only.
NO_WEIGHTS = (DenseGATConv, DNAConv, EdgePooling, FAConv, LPAttLayer, SAGPooling)
SETTINGS = {HypergraphConv: "use_attention", JumpingKnowledge: "att", SelectTopK: "min_score"}
LIBRARIES = ("torch", "torch_geometric", "fgai")
INNER_HOOKS = [
    f"_{step}_forward_{kind}"
    for step in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for kind in ("pre_hooks", "hooks")
]
WITHOUT_SOFTMAX = "torch_geometric.nn.attention"  # linear attention: it never computes the weight of a pair


class AttentionPoint(nn.Module):
    """Marks the attention of a layer that normalises without PyG's softmax, so that fgai can read it.

    Call it in the layer in place of the layer's own softmax. It has no parameters, so the `state_dict` of the model
    keeps its keys.

    >>> import torch
    >>> point = AttentionPoint()
    >>> point(torch.zeros(2, 1), torch.tensor([[0, 1], [2, 2]]), num_targets=3).flatten()
    tensor([0.5000, 0.5000])
    """

    def forward(self, score: Tensor, edge_index: Tensor, num_targets: int) -> Tensor:
        """Return the softmax of the scores over the edges of each target.

        Args:
            score: Attention scores, [E, H].
            edge_index: The edges source -> target, [2, E].
            num_targets: The number of target nodes.

        Returns:
            The attention weights, [E, H].
        """
        return softmax(score, edge_index[1], num_nodes=num_targets)


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules whose attention the tap reads, by name.

    These are message-passing layers and aggregations that call PyG's softmax, `ASAPooling`, `AttentionPoint`, and
    torch's `MultiheadAttention`.

    >>> from torch_geometric.nn import GATConv, GPSConv
    >>> list(attention_layers(GPSConv(4, GATConv(4, 4))))
    ['conv', 'attn']
    """
    return {name: module for name, module in model.named_modules() if _is_read(module)}


def attention_flows(model: nn.Module) -> dict[str, str]:
    """Return the `flow` of the message-passing layers that attend, by name.

    >>> from torch_geometric.nn import GATConv
    >>> attention_flows(GATConv(4, 4))
    {'': 'source_to_target'}
    """
    return {name: layer.flow for name, layer in attention_layers(model).items() if isinstance(layer, MessagePassing)}


def has_inner_hooks(layer: nn.Module) -> bool:
    """Return whether a step inside a message-passing layer has a hook or a mask, which may change what it computes.

    Hooks of fgai do not count. A mask of the edges is what PyG's explainers set.

    >>> from torch_geometric.nn import GATConv
    >>> conv = GATConv(3, 2)
    >>> handle = conv.register_message_forward_hook(lambda layer, inputs, out: 2 * out)
    >>> has_inner_hooks(conv), has_inner_hooks(GATConv(3, 2))
    (True, False)
    """
    hooks = [hook for name in INNER_HOOKS for hook in getattr(layer, name, {}).values()]
    masked = bool(getattr(layer, "explain", False)) and getattr(layer, "_edge_mask", None) is not None
    return masked or not all(isinstance(hook, Hook) for hook in hooks)


def is_multihead(module: nn.Module) -> bool:
    """Return whether a module is torch's `MultiheadAttention` and computes as torch does."""
    plain = getattr(type(module), PLAIN, type(module))
    return isinstance(module, nn.MultiheadAttention) and plain.forward is nn.MultiheadAttention.forward


def softmax_methods(cls: type) -> dict[type, dict[str, FunctionType]]:
    """Return the base classes of `cls` that define methods which call PyG's softmax, with those methods."""
    methods = {owner: {name: f for name, f in vars(owner).items() if _calls_softmax(f)} for owner in cls.__mro__}
    return {owner: functions for owner, functions in methods.items() if functions}


def pooling_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return PyG's layers that replace the nodes by fewer ones, by name; of nested ones the outermost.

    >>> list(pooling_layers(nn.Sequential(SAGPooling(4))))
    ['0']
    """
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if _plain_module(module).startswith("torch_geometric.nn.pool") and not _is_inside(name, layers):
            layers[name] = module
    return layers


def aggregating_layer(model: nn.Module, name: str) -> str | None:
    """Return the name of the message-passing layer that the aggregation `name` works for; None if there is none."""
    for outer, module in model.named_modules():
        part = f"{outer}.aggr_module" if outer else "aggr_module"
        if isinstance(module, MessagePassing) and (name == part or name.startswith(f"{part}.")):
            return outer
    return None


def attention_not_read(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the modules whose attention the tap cannot read.

    These are PyG's linear attention (as in `GPSConv(attn_type="performer")`), its layers whose attention is not over
    the edges of a node or has no softmax, and other modules whose `forward` calls a softmax of any library (a function
    with `softmax` in its name) or torch's `scaled_dot_product_attention`; of message-passing layers also those whose
    own code divides an `exp` by a sum over edges. Modules inside a listed one are not listed again.

    >>> from torch_geometric.nn import GINConv, GPSConv
    >>> attention_not_read(GPSConv(4, GINConv(nn.Linear(4, 4)), attn_type="performer"))
    ('attn',)
    """
    names: list[str] = []
    for name, module in model.named_modules():
        if not _is_read(module) and _may_attend(module) and not _is_inside(name, names):
            names.append(name)
    return tuple(names)


def _is_read(module: nn.Module) -> bool:
    kinds = MessagePassing | AttentionPoint | Aggregation | ASAPooling
    reads = isinstance(module, kinds) and not isinstance(module, NO_WEIGHTS)
    return is_multihead(module) or (reads and bool(softmax_methods(type(module))))


def _may_attend(module: nn.Module) -> bool:
    if isinstance(module, NO_WEIGHTS):
        return True
    for kind, setting in SETTINGS.items():
        if isinstance(module, kind):
            return getattr(module, setting) not in (None, False)
    place = _plain_module(module)
    if place.startswith(WITHOUT_SOFTMAX):
        return not any(map(is_multihead, module.modules()))
    if place.startswith(("torch_geometric.", "torch.", "fgai.")):  # docs/coverage.md has each of PyG's
        return isinstance(module, nn.MultiheadAttention)
    reached = _reached(type(module))
    names = {name for function in reached for name in function.__code__.co_names}
    named = any(_is_softmax(name) and not isinstance(getattr(module, name, None), bool | int | float) for name in names)
    return named or (isinstance(module, MessagePassing) and _computes_softmax(reached))


def _is_softmax(name: str) -> bool:
    """Return whether this is the name of a softmax, of any library, or of attention; not of the logarithm of one."""
    plain = name.lower().replace("_", "")
    return name == "scaled_dot_product_attention" or ("softmax" in plain and "logsoftmax" not in plain)


def _computes_softmax(functions: set[FunctionType]) -> bool:
    """Return whether the user's among these functions call `exp`, sum over the edges of a node, and divide."""
    own = [function for function in functions if _is_users(function)]
    names = {name for function in own for name in function.__code__.co_names}
    sums = any(part in name for name in names for part in ("scatter", "index_add", "segment"))
    divides = names & {"div", "div_", "true_divide"} or any(
        instruction.argrepr in ("/", "/=") for function in own for instruction in get_instructions(function)
    )
    return sums and bool(names & {"exp", "exp_"}) and bool(divides)


def _reached(cls: type) -> set[FunctionType]:
    """Return the methods and the user's functions that `forward` calls, itself included; of message passing, its steps.

    Functions of torch, PyG and fgai are not followed.
    """
    steps = ("message", "edge_update", "aggregate", "update") if issubclass(cls, MessagePassing) else ()
    functions = [getattr(cls, name, None) for name in ("forward", *steps)]
    reached: set[FunctionType] = set()
    while functions:
        function = functions.pop()
        if isinstance(function, FunctionType) and function not in reached:
            reached.add(function)
            names = [name for name in function.__code__.co_names if not hasattr(nn.Module, name)]
            functions += [getattr(cls, name, None) for name in names]
            functions += [called for name in names if _is_users(called := function.__globals__.get(name))]
    return reached


def _is_users(function: Any) -> bool:
    return isinstance(function, FunctionType) and str(function.__module__).partition(".")[0] not in LIBRARIES


def _calls_softmax(function: Any) -> bool:
    return isinstance(function, FunctionType) and any(
        function.__globals__.get(name) is plain for name in function.__code__.co_names for plain in SOFTMAXES
    )


def _plain_module(module: nn.Module) -> str:
    """Return the Python module that defines the class of a layer."""
    return getattr(type(module), PLAIN, type(module)).__module__


def _is_inside(name: str, outer: Any) -> bool:
    return any(name.startswith(f"{other}.") or other == "" for other in outer)
