"""Banks of shared memory: in how many parts a warp's access is made."""

from __future__ import annotations

import functools


@functools.lru_cache(maxsize=4096)
def bank_conflicts(row_threads: int, length: int, apart: int, size: int, pack: int = 1) -> int:
    """In how many parts a warp's access to a vector a thread of its rows in shared memory is made.

    The vectors of `pack` elements of `size` bytes, of the threads of a row of `length`, begin so many elements `apart`. Of those
    of 8 bytes half a warp is served at once, of 16 a quarter, in as many parts as words of one bank are wanted.
    """
    starts = [r * length + lane * apart for r in range(32 // row_threads) for lane in range(row_threads)]
    at_once = 32 * 4 // max(4, pack * size)
    parts = 0
    for first in range(0, 32, at_once):
        served = starts[first : first + at_once]
        banks = [word % 32 for word in {(start + e) * size // 4 for start in served for e in range(pack)}]
        parts += max(map(banks.count, banks))
    return parts
