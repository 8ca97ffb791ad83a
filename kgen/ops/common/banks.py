"""Banks of shared memory: in how many parts a warp's access is made."""

from __future__ import annotations

import functools
from collections.abc import Callable

from kgen.dsl.vector import Vector, lanes, most_alike

#: Lanes of a warp, and banks of 4 bytes.
_LANES, _BANKS = 32, 32


@functools.lru_cache(maxsize=4096)
def bank_conflicts(row_threads: int, length: int, apart: int, size: int, pack: int = 1) -> int:
    """In how many parts a warp's access to a vector a thread of its rows in shared memory is made.

    The vectors of `pack` elements of `size` bytes, of the threads of a row of `length`, begin so many elements `apart`. Of those
    of 8 bytes half a warp is served at once, of 16 a quarter, in as many parts as words of one bank are wanted.
    """
    starts = [r * length + lane * apart for r in range(_LANES // row_threads) for lane in range(row_threads)]
    at_once = _BANKS * 4 // max(4, pack * size)
    served = (starts[first : first + at_once] for first in range(0, _LANES, at_once))
    words = ([(start + e) * size // 4 for start in some for e in range(pack)] for some in served)
    return sum(most_alike(some, _BANKS) for some in words)


def bank_turns(word: Callable[[Vector], Vector]) -> Vector:
    """In how many parts a warp's access to the words `word(lane)` in shared memory is made: as many as are of one bank."""
    return most_alike(lanes(_LANES, word), _BANKS)
