"""Distances between probability distributions along the last dimension.

The `*_terms` functions return the summands, for distributions that are not stored in rows, such as attention weights
per edge.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tvd_terms(p: Tensor, q: Tensor) -> Tensor:
    """Return |p - q| / 2, elementwise."""
    return 0.5 * (p - q).abs()


def kl_terms(p: Tensor, q: Tensor) -> Tensor:
    """Return p log(p / q), elementwise, with 0 log 0 = 0."""
    return torch.special.xlogy(p, p) - torch.special.xlogy(p, q)


def jsd_terms(p: Tensor, q: Tensor) -> Tensor:
    """Return (p log(p / m) + q log(q / m)) / 2 with m = (p + q) / 2, elementwise."""
    p, q = p.clamp(min=0), q.clamp(min=0)  # perturbed weights may be negative, where the logarithm is undefined
    p, q = p.to(dtype := torch.promote_types(p.dtype, q.dtype)), q.to(dtype)
    tiny = torch.finfo(dtype).tiny  # keeps gradients finite where a softmax underflows
    middle = (0.5 * (p + q)).clamp(min=tiny).log()
    return 0.5 * (p * (p.clamp(min=tiny).log() - middle) + q * (q.clamp(min=tiny).log() - middle))


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Return the total variation distance, TVD(p, q) = 1/2 sum |p - q|, in [0, 1].

    [..., C], [..., C] -> [...]

    >>> tvd(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))
    tensor(0.5000)
    """
    return tvd_terms(p, q).sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence, KL(p | q) = sum p log(p / q), in [0, inf].

    >>> kl(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))
    tensor(0.6931)
    """
    return kl_terms(p, q).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence, JSD(p, q) = (KL(p | m) + KL(q | m)) / 2, in [0, log 2].

    >>> jsd(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    return jsd_terms(p, q).sum(-1)
