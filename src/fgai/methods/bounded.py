"""Bounded influence: an attention layer that no features of a neighbour, however large, can drive far.

The attacker of the paper may inject any features in [-1, 1]. A row of such a box can be a hundred times as large as a
row of words, and in a linear layer it outweighs dozens of neighbours. In the first attention layer, let all rows of the
weight of a head be equal to w. A neighbour j then has one value in this head, z_j = w . x_j. With negative parameters
of the attention to sources, its score falls as z_j grows. For GATConv,

    score_ij = leaky(t_i - s z_j),    s = -sum(att_src) >= 1,    t_i = sum(att_dst) z_i.

A neighbour with a large z_j gets at most e^(-0.2 s (z_j - z_k)) of the weight of another neighbour k, so what it adds
to the output is bounded and falls to zero. One with a very negative z_j gets all of the weight. The output of the head
is then very negative, and ReLU or ELU maps it to 0 or -1. So the next layer sees values between those and the values of
the real neighbours, whatever was injected. In robust statistics an estimator with this property has bounded influence
(Hampel 1974).
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
from fgai.calling import eval_mode
from fgai.errors import SettingError
from fgai.graph import require
from fgai.patching import PLAIN
from fgai.reading import TrainingReader
from fgai.training.data import Batch

LEAST = 1.0  # of s
SPREAD = 0.5  # of the first biases in a head, whose units would otherwise all be the same function of z
SIZES, ROWS = (1e4, 1e8), 4  # of the features of the check: factors, and random rows
GROWTH = 10.0  # of the logits from one size to the other, which is an unbounded influence


@dataclass(frozen=True)
class BoundedInfluence:
    """Keeps the weights of one GATConv or GATv2Conv such that its output is bounded; see the module.

    A head has one value for each neighbour. Its units differ in their bias, and so in what the activation makes of that
    value. Clean accuracy needs about as many heads as classes.

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
        ):
            raise SettingError(
                "bounded=True needs a model whose first attention layer is PyG's GATConv or GATv2Conv with "
                f"concat=True, without residual and for one type of nodes; {type(model).__name__} has {layer}"
            )
        return cls(name)

    def start(self, model: nn.Module) -> None:
        """Give each head the direction of its largest singular value, and its scores along that direction."""
        layer, (weight, att) = self._layer(model), self._by_head(model)
        with torch.no_grad():
            left, size, right = torch.linalg.svd(weight, full_matrices=False)
            slope = (att * left[..., 0]).sum(-1)  # of the scores along the direction
            length = size[:, 0] / weight.size(1) ** 0.5 * torch.where(slope > 0, -1.0, 1.0)
            weight.copy_((length.unsqueeze(1) * right[:, 0]).unsqueeze(1).expand_as(weight))
            att.copy_((-slope.abs() / weight.size(1) ** 0.5).unsqueeze(1).expand_as(att))
            if layer.bias is not None:
                layer.bias += torch.linspace(-SPREAD, SPREAD, weight.size(1)).to(layer.bias).repeat(layer.heads)
        self.after_step(model)

    def check(self, read: TrainingReader, batch: Batch) -> None:
        """Raise `SettingError` if the logits still grow with the features."""
        graph = copy.copy(batch.graph)
        x, links = require(graph, "x"), require(graph, "edge_index")
        x = x.to_dense() if x.is_sparse else x
        hub = links[0].bincount(minlength=len(x)).argmax()  # it alone, so that every node has another neighbour
        draw = torch.Generator().manual_seed(0)
        rows = [torch.randint(0, 2, (x.size(1),), generator=draw) * 2.0 - 1 for _ in range(ROWS)]
        largest = [0.0] * len(SIZES)
        with eval_mode(read.model), torch.no_grad():
            for (at, size), row in product(enumerate(SIZES), rows):
                graph.x = x.index_copy(0, hub[None], (size * x.abs().max() * row.to(x))[None])
                largest[at] = max(largest[at], float(read.logits(graph).abs().max()))
        if largest[1] > GROWTH * largest[0]:
            raise SettingError(
                f"bounded=True bounds the layer '{self.name}', but the logits still grow with the features, from "
                f"{largest[0]:.3g} to {largest[1]:.3g} for features 10,000 times as large: an activation that is not "
                "bounded below follows it (use ReLU or ELU), or features reach the logits by another path"
            )

    def before_step(self, model: nn.Module) -> None:
        """Average the gradients of parameters that are equal."""
        for part in self._equal(model):
            if part.grad is not None:
                part.grad.copy_(self._averaged(model, part.grad))

    def after_step(self, model: nn.Module) -> None:
        """Average what rounding moved apart, and keep the scores falling in z."""
        with torch.no_grad():
            for part in self._equal(model):
                part.copy_(self._averaged(model, part))
            _, att = self._by_head(model)
            att.clamp_(max=-LEAST / att.size(1))

    def _layer(self, model: nn.Module) -> Any:
        return model.get_submodule(self.name)

    def _equal(self, model: nn.Module) -> list[Tensor]:
        """Return the parameters that are equal within a head."""
        layer = self._layer(model)
        return [layer.lin_l.weight] if isinstance(layer, GATv2Conv) else [layer.lin.weight, layer.att_src]

    def _averaged(self, model: nn.Module, part: Tensor) -> Tensor:
        """Return the means over the units of each head, in the shape of the parameter."""
        by_head = part.view(self._layer(model).heads, self._layer(model).out_channels, -1)
        return by_head.mean(1, keepdim=True).expand_as(by_head).reshape(part.shape)

    def _by_head(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the weight of the values, [H, D, F], and the attention parameters of the sources, [H, D]."""
        layer = self._layer(model)
        linear, att = (layer.lin_l, layer.att) if isinstance(layer, GATv2Conv) else (layer.lin, layer.att_src)
        return linear.weight.view(layer.heads, layer.out_channels, -1), att[0]
