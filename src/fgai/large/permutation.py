"""A pseudo-random permutation of 0, ..., n - 1 that is computed where it is needed, and never stored."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 4
FACTORS = (-4_658_895_280_553_007_687, -7_723_592_293_110_705_685)  # those of SplitMix64, as signed numbers
STEP = 0x9E3779B97F4A7C15  # of SplitMix64, from one state to the next


class Permutation:
    """A permutation of 0, ..., n - 1 that depends on a key; a position costs the same whatever n.

    A Feistel network on the bits of a position: the lower and the upper half are changed in turn, each by an exclusive
    or with a hash of the other half and the key, which can be undone, so that no two positions meet. Positions beyond n
    are mapped again until they are below n.

    Args:
        count: The number n of positions.
        key: An integer; another one gives another permutation.

    >>> shuffled = Permutation(6, key=1)(torch.arange(6))
    >>> sorted(shuffled.tolist())
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, count: int, key: int) -> None:
        self.count, self.key = count, key
        bits = max(count - 1, 1).bit_length()
        self._low, self._high = (bits + 1) // 2, bits // 2

    def __call__(self, positions: Tensor) -> Tensor:
        """Return where each position goes; positions are integers from 0 to n - 1."""
        result = self._mixed(positions.long())
        while len(outside := (result >= self.count).nonzero().flatten()):
            result[outside] = self._mixed(result[outside])
        return result

    def _mixed(self, value: Tensor) -> Tensor:
        """Permute the numbers of as many bits as n - 1 has."""
        low, high = value & ((1 << self._low) - 1), value >> self._low
        for number in range(ROUNDS):
            low = low ^ self._hash(high, 2 * number, self._low)
            high = high ^ self._hash(low, 2 * number + 1, self._high)
        return (high << self._low) | low

    def _hash(self, value: Tensor, number: int, bits: int) -> Tensor:
        """Return a hash of so many bits: the output function of SplitMix64, with a state for each round and key."""
        state = ((self.key * 2 * ROUNDS + number + 1) * STEP) % 2**64
        value = value + (state - 2**64 if state >= 2**63 else state)
        for shift, factor in zip((30, 27), FACTORS, strict=True):
            value = (value ^ _right(value, shift)) * factor
        return _right(value ^ _right(value, 31), 64 - bits) if bits else torch.zeros_like(value)


def _right(value: Tensor, bits: int) -> Tensor:
    """Shift to the right as if the numbers had no sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
