"""Operations of attention layers on edges in a known order, with gradients.

PyG gathers a message per edge and head and scatters it to the target. With A_h the sparse matrix of head h's weights
(targets x sources), the same sum is A_h U_h. The gradient with respect to the values is A_h^T G_h. The gradient with
respect to the weights is G_h U_h^T at the edges only, a sampled product, which also computes query-key scores. Nothing
of size edges x channels is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag, leaky_relu

from fgai.kernels.csr import EdgeOrder, Pattern, csr

CHUNK = 2**17  # message entries that fit into the cache of a core
LEVELS = 1 << 16  # number of levels of the probability in `fast_dropout`
TINY = 1e-16  # added to the denominator of the softmax, as PyG does


def aggregate(weight: Tensor, value: Tensor, order: EdgeOrder) -> Tensor:
    """Return sum_j w_ij u_j per head; [E, H], [num_sources, H, C] -> [num_targets, H, C].

    >>> order = EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    >>> aggregate(torch.tensor([[0.25], [0.75]]), torch.tensor([[[4.0]], [[8.0]]]), order).flatten()
    tensor([7.])
    """
    return _Aggregate.apply(weight, value, order)


def dot_scores(query: Tensor, key: Tensor, order: EdgeOrder) -> Tensor:
    """Return <q_i, k_j> per edge j -> i and head; [num_targets, H, C], [num_sources, H, C] -> [E, H].

    >>> order = EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    >>> dot_scores(torch.tensor([[[2.0]]]), torch.tensor([[[4.0]], [[8.0]]]), order).flatten()
    tensor([ 8., 16.])
    """
    return _DotScores.apply(query, key, order)


def gat_scores(source: Tensor, target: Tensor, slope: float, order: EdgeOrder) -> Tensor:
    """Return GATConv scores leaky(s_j + t_i) per edge j -> i; [num_sources, H], [num_targets, H] -> [E, H].

    >>> order = EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    >>> gat_scores(torch.tensor([[1.0], [-3.0]]), torch.tensor([[1.0]]), 0.5, order).flatten()
    tensor([ 2., -1.])
    """
    return leaky_relu(_EndSum.apply(source, target, order), slope)


def gatv2_scores(source: Tensor, target: Tensor, att: Tensor, slope: float, order: EdgeOrder) -> Tensor:
    """Return GATv2Conv scores <a, leaky(s_j + t_i)> per edge j -> i and head.

    [num_sources, H, C], [num_targets, H, C], [H, C] -> [E, H]

    Edges are processed in chunks, so that gathered rows stay in the processor's cache. The backward pass gathers again.

    >>> order = EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    >>> source, target = torch.tensor([[[1.0]], [[-3.0]]]), torch.tensor([[[1.0]]])
    >>> gatv2_scores(source, target, torch.ones(1, 1), 0.5, order).flatten()
    tensor([ 2., -1.])
    """
    return _GATv2Scores.apply(source, target, att, slope, order)


def edge_softmax(score: Tensor, order: EdgeOrder) -> Tensor:
    """Return w_ij = exp(s_ij) / sum_k exp(s_ik) over the edges into i; [E, H]. Its gradient is w (g - sum_k w_ik g_ik).

    >>> edge_softmax(torch.zeros(2, 1), EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)).flatten()
    tensor([0.5000, 0.5000])
    """
    return _Softmax.apply(score, order)


def sparse_linear(
    x: Tensor, weight: Tensor, order: EdgeOrder, transposed: Callable[[], Tensor] | None = None
) -> Tensor:
    """Return the product x W^T of a sparse x [N, I], with gradients to the values of x and to W [O, I]; [N, O].

    The gradient with respect to the values is computed at the stored entries only; torch computes a dense matrix.

    Args:
        x: A coalesced sparse COO matrix.
        weight: The matrix W.
        order: The order of the entries of x.
        transposed: Returns the values of x in the order of x^T, if the caller caches them. Only the gradient with
            respect to W uses it.

    >>> x = torch.tensor([[0.0, 2.0], [1.0, 0.0]]).to_sparse()
    >>> sparse_linear(x, torch.tensor([[3.0, 5.0]]), EdgeOrder.of(x.indices().flip(0), 2, 2)).flatten()
    tensor([10.,  3.])
    """
    return _SparseLinear.apply(x.values(), weight, order, transposed)


def fast_dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Apply dropout with 16 random bits per entry, at a quarter of the cost of torch's dropout.

    The survival probability q is the multiple of 2^-16 nearest to 1 - p. Entries that are not dropped are divided by q.

    >>> torch.manual_seed(0) and fast_dropout(torch.ones(100_000), 0.6).mean().round(decimals=1)
    tensor(1.)
    """
    if training and p >= 1:
        return torch.zeros_like(x)
    levels = max(round((1 - p) * LEVELS), 1)
    if not training or levels >= LEVELS:
        return x
    words = torch.empty(-(-x.numel() // 4), dtype=torch.long, device=x.device).random_(-(2**63), None)
    mask = words.view(torch.int16)[: x.numel()] < levels - LEVELS // 2
    return x * mask.view(x.shape).to(x.dtype).mul_(LEVELS / levels)


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, value: Tensor, order: EdgeOrder) -> Tensor:
        ctx.save_for_backward(weight, value)
        ctx.order = order
        return _product(weight, value, order)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        (weight, value), order, (grad,) = ctx.saved_tensors, ctx.order, grads
        return (
            _sampled_product(grad, value, order) if ctx.needs_input_grad[0] else None,
            _transposed_product(weight, grad, order) if ctx.needs_input_grad[1] else None,
            None,
        )


class _DotScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, order: EdgeOrder) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.order = order
        return _sampled_product(query, key, order)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        (query, key), order, (grad,) = ctx.saved_tensors, ctx.order, grads
        return (
            _product(grad, key, order) if ctx.needs_input_grad[0] else None,
            _transposed_product(grad, query, order) if ctx.needs_input_grad[1] else None,
            None,
        )


class _EndSum(torch.autograd.Function):
    """Compute s_j + t_i per edge."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, order: EdgeOrder) -> Tensor:
        ctx.order = order
        return source.index_select(0, order.source).add_(target.index_select(0, order.target))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        order, (grad,) = ctx.order, grads
        return (
            order.outgoing.sum(grad) if ctx.needs_input_grad[0] else None,
            order.incoming.sum(grad) if ctx.needs_input_grad[1] else None,
            None,
        )


class _GATv2Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, att: Tensor, slope: float, order: EdgeOrder) -> Tensor:
        ctx.save_for_backward(source, target, att)
        ctx.slope, ctx.order = slope, order
        score = source.new_empty(len(order.source), source.size(1))
        for chunk in _chunks(order, source):
            score[chunk] = (leaky_relu(_gather(source, target, order, chunk), slope).mul_(att)).sum(-1)
        return score

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        (source, target, att), slope, order, (grad,) = ctx.saved_tensors, ctx.slope, ctx.order, grads
        grad_sum = source.new_empty(len(order.source), *source.shape[1:])
        grad_att = torch.zeros_like(att) if ctx.needs_input_grad[2] else None
        for chunk in _chunks(order, source):
            inner = _gather(source, target, order, chunk)
            grad_score = grad[chunk].unsqueeze(2)
            if grad_att is not None:
                grad_att += leaky_relu(inner, slope).mul_(grad_score).sum(0)
            grad_sum[chunk] = torch.ops.aten.leaky_relu_backward(grad_score * att, inner, slope, False)
        grad_source = order.outgoing.sum(grad_sum) if ctx.needs_input_grad[0] else None
        grad_target = order.incoming.sum(grad_sum) if ctx.needs_input_grad[1] else None
        return grad_source, grad_target, grad_att, None, None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, score: Tensor, order: EdgeOrder) -> Tensor:
        weight = score - order.incoming.max(score).index_select(0, order.target)
        weight.exp_()
        weight /= order.incoming.sum(weight).add_(TINY).index_select(0, order.target)
        ctx.save_for_backward(weight)
        ctx.order = order
        return weight

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, None]:
        (weight,), order, (grad,) = ctx.saved_tensors, ctx.order, grads
        product = weight * grad
        return product.addcmul_(weight, order.incoming.sum(product).index_select(0, order.target), value=-1), None


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, order: EdgeOrder, transposed: Callable[[], Tensor] | None
    ) -> Tensor:
        ctx.save_for_backward(values, weight)
        ctx.order, ctx.transposed = order, transposed
        begin, column = order.rows
        return embedding_bag(column, weight.t().contiguous(), begin[:-1], mode="sum", per_sample_weights=values)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        (values, weight), order, (grad,) = ctx.saved_tensors, ctx.order, grads
        grad_values, grad_weight = None, None
        if ctx.needs_input_grad[0]:
            pattern = csr(order.rows, torch.zeros_like(values), order.shape)
            grad_values = torch.sparse.sampled_addmm(pattern, grad.contiguous(), weight, beta=0.0).values()
        if ctx.needs_input_grad[1]:
            entries = values.index_select(0, order.transposed) if ctx.transposed is None else ctx.transposed()
            grad_weight = (csr(order.columns, entries, (order.num_sources, order.num_targets)) @ grad).t()
        return grad_values, grad_weight, None, None


def _product(weight: Tensor, value: Tensor, order: EdgeOrder) -> Tensor:
    """Return A U per head; [E, H], [num_sources, H, C] -> [num_targets, H, C]."""
    return _multiply_heads(order.entries(weight), value, order.rows, order.shape)


def _transposed_product(weight: Tensor, value: Tensor, order: EdgeOrder) -> Tensor:
    """Return A^T G per head; [E, H], [num_targets, H, C] -> [num_sources, H, C]."""
    return _multiply_heads(
        order.transposed_entries(weight), value, order.columns, (order.num_sources, order.num_targets)
    )


def _multiply_heads(entries: Tensor, value: Tensor, pattern: Pattern, shape: tuple[int, int]) -> Tensor:
    entries, value = entries.t().contiguous(), value.transpose(0, 1).contiguous()
    return torch.stack([csr(pattern, e, shape) @ v for e, v in zip(entries, value, strict=True)], dim=1)


def _sampled_product(left: Tensor, right: Tensor, order: EdgeOrder) -> Tensor:
    """Return L R^T at the edges only, per head; [num_targets, H, C], [num_sources, H, C] -> [E, H]."""
    pattern = csr(order.rows, left.new_zeros(len(order.edge)), order.shape)
    heads = [  # torch copies b itself, so that its rows are contiguous
        torch.sparse.sampled_addmm(pattern, a, b.t(), beta=0.0).values()
        for a, b in zip(left.unbind(1), right.unbind(1), strict=True)
    ]
    return order.at_edges(torch.stack(heads, dim=1))


def _chunks(order: EdgeOrder, source: Tensor) -> list[slice]:
    size = max(CHUNK // source[0].numel(), 1)
    return [slice(first, first + size) for first in range(0, len(order.source), size)]


def _gather(source: Tensor, target: Tensor, order: EdgeOrder, chunk: slice) -> Tensor:
    """Return s_j + t_i of the edges in a chunk; [e, H, C]."""
    return source.index_select(0, order.source[chunk]).add_(target.index_select(0, order.target[chunk]))
