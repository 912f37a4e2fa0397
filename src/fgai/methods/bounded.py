"""Bounded influence: an attention layer that no features of a neighbour, however large, can drive far.

The attacker of the paper may inject any features in [-1, 1]. A row of such a box can be a hundred times as large as a
row of words, and in a linear layer it outweighs dozens of neighbours. In the first attention layer, let a neighbour j
have one value in each head, z_j = w . x_j, and let its score fall as this value grows. What it adds to the output is
then bounded and falls to zero. In robust statistics an estimator with this property has bounded influence (Hampel
1974).

In GATConv, all rows of the weight of a head are w, and the parameters of the attention to sources are equal and
negative:

    score_ij = leaky(t_i - s z_j),    s = -sum(att_src) >= 1,    t_i = sum(att_dst) z_i.

A neighbour with a large z_j gets at most e^(-0.2 s (z_j - z_k)) of the weight of another neighbour k. One with a very
negative z_j gets all of the weight. The output of the head is then very negative, and ReLU or ELU maps it to 0 or -1.
So the next layer sees values between those and the values of the real neighbours, whatever was injected.

In GATv2Conv, half of the rows of `lin_l` are w and the other half -w (signs s_d), those of `lin_r` are -k s_d w, and
the attention parameters of a head are equal to -a:

    score_ij = -a sum_d leaky(s_d (z_j - k z_i) + b_d),    a >= 1 / D,    k <= 0.4.

Since leaky(z) + leaky(-z) = 0.8 |z|, the score falls in both directions: a neighbour with a large |z_j| gets no weight.
With k < 0.5 a node prefers its neighbours' values to a large value of its own.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv

from fgai.attending import attention_layers
from fgai.errors import SettingError
from fgai.graph import require
from fgai.modes import eval_mode
from fgai.patching import PLAIN
from fgai.reading import TrainingReader
from fgai.training.data import Batch

LEAST = 1.0  # of s, and of a D
SHARE = 0.8  # of the k from which on a node prefers a large value of its own
SPREAD = 0.5  # of the first biases in a head, whose units would otherwise all be the same function of z
SIZES, ROWS = (1e4, 1e8), 8  # of the features of the check: factors, and random rows, each with both signs
TINY = 1e-20  # keeps the direction of a weight of zeros finite
GROWTH = 10.0  # of the logits from one size to the other, which is an unbounded influence


@dataclass(frozen=True)
class BoundedInfluence:
    """Keeps the weights of one GATConv or GATv2Conv such that its output is bounded; see the module.

    A head has one value for each neighbour. Its units differ in their bias, and so in what the activation makes of that
    value. Clean accuracy needs several heads.

    Args:
        name: Name of the layer in the model.

    >>> conv = GATConv(3, 4, heads=2)
    >>> BoundedInfluence("").start(conv)
    >>> rows = conv.lin.weight.view(2, 4, 3)
    >>> torch.equal(rows[:, 0], rows[:, 1]), bool((conv.att_src.sum(-1) <= -1).all())
    (True, True)
    """

    name: str

    @classmethod
    def of(cls, model: nn.Module) -> BoundedInfluence:
        """Return the constraint on the first attention layer of a model.

        Raises:
            SettingError: That layer cannot be bounded.
        """
        name, layer = next(iter(attention_layers(model).items()), ("", model))
        kind: Any = getattr(type(layer), PLAIN, type(layer))
        options = vars(layer)
        if (
            kind not in (GATConv, GATv2Conv)
            or not options["concat"]
            or options["residual"]
            or not isinstance(options["in_channels"], int)
            or not _scores_can_fall(layer)
        ):
            raise SettingError(
                "bounded=True needs a model whose first attention layer is PyG's GATConv, or its GATv2Conv with two or "
                "more units in each head, with concat=True, without residual, for one type of nodes, and with a "
                f"negative_slope above 0 and far below 1; {type(model).__name__} has {layer}"
            )
        return cls(name)

    def start(self, model: nn.Module) -> None:
        """Give each head the direction of its largest singular value, and its scores along that direction."""
        layer, (weight, att) = self._layer(model), self._by_head(model)
        with torch.no_grad():
            left, size, right = torch.linalg.svd(weight, full_matrices=False)
            slope = (att * left[..., 0]).sum(-1)  # of the scores along the direction
            length = size[:, 0] / weight.size(1) ** 0.5 * torch.where(slope > 0, -1.0, 1.0)
            weight.copy_(_signs(layer) * (length.unsqueeze(1) * right[:, 0]).unsqueeze(1))
            att.copy_((-slope.abs() / weight.size(1) ** 0.5).unsqueeze(1).expand_as(att))
            if layer.bias is not None:
                layer.bias += torch.linspace(-SPREAD, SPREAD, weight.size(1)).to(layer.bias).repeat(layer.heads)
        self.after_step(model)

    def check(self, read: TrainingReader, batch: Batch) -> None:
        """Raise `SettingError` if the logits still grow with the features.

        Large rows go in with both signs: a later attention layer may give no weight to one, and then all to the other.
        """
        graph = copy.copy(batch.graph)
        x, links = require(graph, "x"), require(graph, "edge_index")
        x = x.to_dense() if x.is_sparse else x
        hub = links[0].bincount(minlength=len(x)).argmax()  # it alone, so that every node has another neighbour
        draw = torch.Generator().manual_seed(0)
        rows = [torch.randint(0, 2, (x.size(1),), generator=draw) * 2.0 - 1 for _ in range(ROWS)]
        largest = [0.0] * len(SIZES)
        with eval_mode(read.model), torch.no_grad():
            for (at, size), row, sign in product(enumerate(SIZES), rows, (1, -1)):
                graph.x = x.index_copy(0, hub[None], (sign * size * x.abs().max() * row.to(x))[None])
                largest[at] = max(largest[at], float(read.logits(graph).abs().max()))
        if largest[1] > GROWTH * largest[0]:
            raise SettingError(
                f"bounded=True bounds the layer '{self.name}', but the logits still grow with the features, from "
                f"{largest[0]:.3g} to {largest[1]:.3g} for features 10,000 times as large: an activation that is not "
                "bounded below follows it (use ReLU or ELU), or features reach the logits by another path"
            )

    def before_step(self, model: nn.Module) -> None:
        """Average the gradients of parameters that are equal."""
        for part, signs in self._equal(model):
            if part.grad is not None:
                part.grad.copy_(self._averaged(model, part.grad, signs))

    def after_step(self, model: nn.Module) -> None:
        """Average what rounding moved apart, and keep the scores falling in z."""
        layer, (weight, att) = self._layer(model), self._by_head(model)
        with torch.no_grad():
            for part, signs in self._equal(model):
                part.copy_(self._averaged(model, part, signs))
            att.clamp_(max=-LEAST / att.size(1))
            if isinstance(layer, GATv2Conv) and layer.lin_r is not layer.lin_l:
                own = layer.lin_r.weight.view_as(weight)
                along = (own * weight).sum((1, 2)) / weight.square().sum((1, 2)).clamp(min=TINY)  # -k
                own.copy_(along.clamp(min=-_largest_k(layer)).view(-1, 1, 1) * weight)

    def _layer(self, model: nn.Module) -> Any:
        return model.get_submodule(self.name)

    def _by_head(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the weight of the values, [H, D, F], and the attention parameters of the sources, [H, D]."""
        layer, ((weight, _), (att, _)) = self._layer(model), self._equal(model)
        return weight.view(layer.heads, layer.out_channels, -1), att[0]

    def _equal(self, model: nn.Module) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return the parameters that are equal within a head up to signs, and these signs, [D, 1]."""
        layer = self._layer(model)
        linear, att = (layer.lin_l, layer.att) if isinstance(layer, GATv2Conv) else (layer.lin, layer.att_src)
        signs = _signs(layer)
        return (linear.weight, signs), (att, signs.abs())

    def _averaged(self, model: nn.Module, part: Tensor, signs: Tensor) -> Tensor:
        """Return the means over the units of each head, with their signs, in the shape of the parameter."""
        by_head = part.view(self._layer(model).heads, self._layer(model).out_channels, -1)
        return (signs * (signs * by_head).mean(1, keepdim=True)).expand_as(by_head).reshape(part.shape)


def _signs(layer: Any) -> Tensor:
    """Return the signs of the rows of a head, [D, 1]: those of a GATv2Conv are w and -w."""
    units = torch.arange(layer.out_channels, device=next(layer.parameters()).device)
    half = (layer.out_channels + 1) // 2 if isinstance(layer, GATv2Conv) else layer.out_channels
    return torch.where(units < half, 1.0, -1.0).unsqueeze(1)


def _scores_can_fall(layer: Any) -> bool:
    """Return whether the scores fall as z grows, for GATv2Conv in both directions."""
    return _largest_k(layer) > 0 if isinstance(layer, GATv2Conv) else layer.negative_slope > 0


def _largest_k(layer: GATv2Conv) -> float:
    """Return the largest k that is allowed, 0 if the scores do not fall in both directions.

    With p rows w, n rows -w and the negative slope r, the scores fall by u = p - r n and v = n - r p for each unit of
    a |z| in the two directions. A node prefers its neighbours to a large value of its own for all k < v / (u + v).
    """
    minus = layer.out_channels // 2
    plus, slope = layer.out_channels - minus, layer.negative_slope
    falls = sorted((plus - slope * minus, minus - slope * plus))
    return SHARE * falls[0] / sum(falls) if falls[0] > 0 else 0.0
