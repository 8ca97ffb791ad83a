"""Philox4x32-10: counter-based random numbers on tensors, the reference of what `random` computes.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF


def uniform(index: Tensor, seed: int, offset: int) -> Tensor:
    """The number in [0, 1), as float32, of every index (int64): 24 bits of word index % 4 of block offset + index / 4."""
    words = philox(index // 4 + offset, seed)
    word = torch.stack(words).gather(0, (index % 4).unsqueeze(0)).squeeze(0)
    return (word >> 8).float() * 2.0**-24


def philox(counter: Tensor, seed: int) -> list[Tensor]:
    """The four 32-bit words, as int64, of each 64-bit counter under a 64-bit key."""
    c = [counter & _MASK, (counter >> 32) & _MASK, torch.zeros_like(counter), torch.zeros_like(counter)]
    key = [seed & _MASK, (seed >> 32) & _MASK]
    for _ in range(_ROUNDS):
        high0, low0 = _product(c[0], _MULTIPLIERS[0])
        high1, low1 = _product(c[2], _MULTIPLIERS[1])
        c = [high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0]
        key = [(k + w) & _MASK for k, w in zip(key, _WEYL)]
    return c


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower 32 bits of the product of 32-bit numbers."""
    low = (a & 0xFFFF) * b
    middle = (a >> 16) * b + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)
