"""The directions of Adam, for attacks that project each step."""

from __future__ import annotations

import torch
from torch import Tensor


class Adam:
    """The directions of Adam (Kingma and Ba, 2015): the mean of the slopes over the root of their mean square.

    >>> adam = Adam()
    >>> adam(torch.tensor([2.0, -4.0])), adam(torch.tensor([0.0, -4.0]))
    (tensor([ 1., -1.]), tensor([ 0.6700, -1.0000]))
    """

    DECAY = (0.9, 0.999)  # of the mean and of the mean square

    def __init__(self) -> None:
        self.steps = 0
        self.mean, self.square = torch.zeros(()), torch.zeros(())

    def __call__(self, slope: Tensor) -> Tensor:
        """Return the direction of the next step."""
        (first, second), self.steps = self.DECAY, self.steps + 1
        self.mean = first * self.mean + (1 - first) * slope
        self.square = second * self.square + (1 - second) * slope.square()
        size = (self.square / (1 - second**self.steps)).sqrt().clamp(min=torch.finfo(slope.dtype).tiny)
        return self.mean / (1 - first**self.steps) / size
