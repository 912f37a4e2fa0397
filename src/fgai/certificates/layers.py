"""GATConv and GATv2Conv as matrices, for all certificates that compute with them.

layer   out_i = sum_j softmax_j(s_ij) (V x_j + v) + b     over the neighbours j of i, with self-loops also i
GAT     s_ij = leaky(a . x_j + t . x_i),                  v = 0
GATv2   s_ij = att . leaky(L x_j + l + R x_i + r),        V = L, v = l
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from fgai.attending import has_inner_hooks
from fgai.devices import to_double

Activation = Callable[[Tensor], Tensor]
PARAMETERS = ("x", "edge_index", "edge_attr", "size")  # of `forward`
METHODS = ("forward", "message", "aggregate", "update", "edge_update")  # a layer that overrides one has other formulas


def identity(h: Tensor) -> Tensor:
    """Return the input: no activation."""
    return h


# All are non-decreasing. The first four do not change values of 0 and more, so they agree where a layer's output has no
# negative entry. `identity` is first, because its image of a box around such an output contains those of the others.
ACTIVATIONS: tuple[Activation, ...] = (
    identity,
    functional.elu,
    functional.relu,
    functional.leaky_relu,
    torch.tanh,
    torch.sigmoid,
)


@dataclass(frozen=True)
class Layer:
    """One attention layer as matrices; H heads, C channels, F inputs."""

    value: Tensor  # V, [H, C, F]
    value_bias: Tensor  # v, [H, C]
    source: Tensor  # GAT: a, [H, F]; GATv2: L, [H, C, F]
    target: Tensor  # GAT: t, [H, F]; GATv2: R, [H, C, F]
    target_bias: Tensor  # GATv2: r, [H, C]
    att: Tensor | None  # GATv2: [H, C]; GAT: None
    bias: Tensor  # b, [H C], or [C] if the heads are averaged
    slope: float
    loops: bool
    concat: bool

    @classmethod
    def of(cls, layer: Any, *, differentiable: bool = False) -> Layer:
        """Return the matrices of a PyG layer in float64, or, if `differentiable`, as they are, with their gradients.

        >>> Layer.of(GATConv(3, 2, heads=4)).value.shape
        torch.Size([4, 2, 3])
        """
        heads, channels = layer.heads, layer.out_channels
        cast = identity if differentiable else lambda weight: to_double(weight.detach())
        matrix = lambda linear: cast(linear.weight).view(heads, channels, -1)  # noqa: E731
        common = {"slope": layer.negative_slope, "loops": layer.add_self_loops, "concat": layer.concat}
        value = matrix(layer.lin if isinstance(layer, GATConv) else layer.lin_l)
        zero = torch.zeros_like(value[..., 0])
        width = heads * channels if layer.concat else channels
        bias = value.new_zeros(width) if layer.bias is None else cast(layer.bias)
        if isinstance(layer, GATConv):
            source, target = (
                torch.einsum("hc,hcf->hf", cast(part)[0], value) for part in (layer.att_src, layer.att_dst)
            )
            return cls(value, zero, source, target, zero, None, bias, **common)
        own, other = (
            zero if linear.bias is None else cast(linear.bias).view(heads, channels)
            for linear in (layer.lin_l, layer.lin_r)
        )
        return cls(value, own, value, matrix(layer.lin_r), other, cast(layer.att)[0], bias, **common)

    @property
    def shift(self) -> Tensor:
        """What a head adds to the weighted sum of V x: v + b; [H, C]. Not for averaged heads."""
        return self.value_bias + self.bias.view_as(self.value_bias)

    @property
    def inner(self) -> Tensor:
        """What GATv2 adds inside the leaky ReLU: l + r; [H, C]."""
        return self.value_bias + self.target_bias

    def leaky(self, score: Tensor) -> Tensor:
        """Return the scores after the leaky ReLU."""
        return functional.leaky_relu(score, self.slope)

    def messages(self, x: Tensor) -> Tensor:
        """Return V x + v, the vectors that the attention weights; [N, F] -> [N, H, C]."""
        return torch.einsum("nf,hcf->nhc", x, self.value) + self.value_bias

    def values(self, x: Tensor) -> Tensor:
        """Return V x + v + b, whose weighted mean is the output of the layer; [N, F] -> [N, H, C]."""
        return torch.einsum("nf,hcf->nhc", x, self.value) + self.shift

    def scores(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Return the score of each edge; [E, H]."""
        if self.att is None:
            return self.leaky((x @ self.source.t())[source] + (x @ self.target.t())[target])
        left, right = (torch.einsum("nf,hcf->nhc", x, part) for part in (self.source, self.target))
        heads = [self.leaky(left[:, h][source] + right[:, h][target] + self.inner[h]) for h in range(len(self.att))]
        return torch.stack([head @ att for head, att in zip(heads, self.att, strict=True)], 1)

    def on_projections(self, x: Tensor) -> tuple[Layer, Tensor]:
        """Return the same layer with the projections V x, a x and t x as its input, and these projections."""
        forms = {"value": self.value, "source": self.source, "target": self.target}
        rows = [form.flatten(0, -2) for form in forms.values()]
        same = torch.eye(sum(map(len, rows)), dtype=x.dtype, device=x.device).split([len(part) for part in rows])
        picks = {name: part.view(*forms[name].shape[:-1], -1) for name, part in zip(forms, same, strict=True)}
        return replace(self, **picks), x @ torch.cat(rows).t()

    def merge_heads(self, value: Tensor) -> Tensor:
        """Concatenate or average the heads, as the layer does; [N, H, C] -> [N, H C] or [N, C]."""
        return value.flatten(1) if self.concat else value.mean(1)


@dataclass(frozen=True)
class LayerCall:
    """One call of an attention layer inside a model."""

    layer: Any
    inputs: dict[str, Any]  # by the name of the parameter
    out: Any

    @property
    def x(self) -> Tensor | None:
        """The input features; None if they are not one tensor."""
        x = self.inputs.get("x")
        return x if isinstance(x, Tensor) else None

    @property
    def is_plain(self) -> bool:
        """Whether the formulas hold: no residual, edge features, overridden method or hook. Ask outside of a tap."""
        base: Any = next((kind for kind in (GATConv, GATv2Conv) if isinstance(self.layer, kind)), None)
        return (
            base is not None
            and self.layer.res is None
            and not any(self.inputs.get(name) is not None for name in ("edge_attr", "size"))
            and all(getattr(type(self.layer), method) is getattr(base, method) for method in METHODS)
            and not any(method in vars(self.layer) for method in METHODS)
            and not has_inner_hooks(self.layer)
            and getattr(self.layer, "lin", self.layer) is not None  # GATConv with separate sources and targets has none
        )


@contextmanager
def recorded_calls(model: nn.Module) -> Iterator[list[LayerCall]]:
    """Record the calls of GATConv, GATv2Conv and TransformerConv inside a `with` block, in the order of execution."""
    calls: list[LayerCall] = []

    def record(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        out = out[0] if isinstance(out, tuple) else out  # with `return_attention_weights`
        calls.append(LayerCall(layer, dict(zip(PARAMETERS, args, strict=False)) | kwargs, out))

    kinds = (GATConv, GATv2Conv, TransformerConv)
    layers = [module for module in model.modules() if isinstance(module, kinds)]
    hooks = [layer.register_forward_hook(record, with_kwargs=True) for layer in layers]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def match_activation(*pairs: tuple[Any, Tensor | None]) -> Activation | None:
    """Return the activation that maps each output of a layer to the input of the next one, or None.

    >>> match_activation((torch.tensor([[-1.0, 2.0]]), torch.tensor([[0.0, 2.0]]))) is functional.relu
    True
    """
    if not all(isinstance(out, Tensor) and x is not None and out.shape == x.shape for out, x in pairs):
        return None
    return next((f for f in ACTIVATIONS if all(torch.equal(f(out), x) for out, x in pairs)), None)  # pyright: ignore
