"""Features times weights: bag-of-words rows by their few entries, and injected rows beside those that stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from fgai.kernels.order import EdgeOrder, csr


def product(x: Tensor, weight: Tensor, order: EdgeOrder, turned: Tensor | None = None) -> Tensor:
    """The product x W^T of a sparse x whose entries lie as `order` says, gradients to its values and W; -> [N, O].

    `turned` are the values as they lie in x^T, if they are known. The gradient in the values is made at the stored
    entries only, where torch makes all of a dense matrix.

    >>> x = torch.tensor([[0.0, 2.0], [1.0, 0.0]]).to_sparse()
    >>> product(x, torch.tensor([[3.0, 5.0]]), EdgeOrder.of(x.indices().flip(0), 2, 2)).flatten()
    tensor([10.,  3.])
    """
    return _Product.apply(x.values(), weight, order, turned)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, order: EdgeOrder, turned: Tensor | None) -> Tensor:
        ctx.save_for_backward(values, weight)
        ctx.order, ctx.turned = order, turned
        begin, column = order.rows
        return embedding_bag(column, weight.t().contiguous(), begin[:-1], mode="sum", per_sample_weights=values)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        (values, weight), order, (grad,) = ctx.saved_tensors, ctx.order, grads
        pull = None
        if ctx.needs_input_grad[0]:
            pattern = csr(order.rows, torch.zeros_like(values), order.shape)
            pull = torch.sparse.sampled_addmm(pattern, grad.contiguous(), weight, beta=0.0).values()
        pull_weight = None
        if ctx.needs_input_grad[1]:
            turned = values.index_select(0, order.turned) if ctx.turned is None else ctx.turned
            pull_weight = (csr(order.columns, turned, (order.num_sources, order.num_targets)) @ grad).t()
        return pull, pull_weight, None, None
