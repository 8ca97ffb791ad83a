"""Which elements of strided tensors share memory: decided exactly, from sizes and strides alone.

Two index vectors meet where sum(stride * index) agrees: one linear equation in bounded integers. Going from the largest
stride to the smallest leaves one or two values of each index for the strides that tensors have in practice. For contrived
strides the search is cut short and the answer is "they may".
"""

from __future__ import annotations

from collections.abc import Sequence

#: Steps after which the search gives up.
_STEPS = 10_000

#: An unknown of the equation: its coefficient, and the least and the greatest value it may have.
Unknown = tuple[int, int, int]


def solvable(unknowns: Sequence[Unknown], total: int) -> bool:
    """Whether integers within their bounds make sum(coefficient * value) equal to `total`; True also where unknown."""
    bounds: dict[int, tuple[int, int]] = {}
    for c, low, high in unknowns:
        if c < 0:
            c, low, high = -c, -high, -low
        # Unknowns of one coefficient act as their sum.
        so_far = bounds.get(c, (0, 0))
        bounds[c] = so_far[0] + low, so_far[1] + high
    bounds.pop(0, None)
    order = [(c, *bounds[c]) for c in sorted(bounds, reverse=True)]
    # From each place on, what the rest can reach.
    least, most = [0], [0]
    for c, low, high in reversed(order):
        least.append(least[-1] + c * low)
        most.append(most[-1] + c * high)
    least.reverse()
    most.reverse()
    seen: set[tuple[int, int]] = set()
    stack = [(0, total)]
    while stack:
        place, rest = stack.pop()
        if not least[place] <= rest <= most[place] or (place, rest) in seen:
            continue
        if place == len(order) or len(seen) >= _STEPS:
            return True
        seen.add((place, rest))
        c, low, high = order[place]
        # What follows must make up for the difference to c * value.
        first = max(low, -((most[place + 1] - rest) // c))
        last = min(high, (rest - least[place + 1]) // c)
        if last - first > _STEPS:
            return True
        stack.extend((place + 1, rest - c * value) for value in range(first, last + 1))
    return False


def extent(shape: Sequence[int], strides: Sequence[int], size: int) -> int:
    """Bytes from a tensor's first element to the end of its last, for elements of `size` bytes; 0 where it is empty."""
    if 0 in shape:
        return 0
    last = 0
    for n, s in zip(shape, strides):
        last += (n - 1) * s
    return (last + 1) * size


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of one tensor lie at one address, as in an expanded tensor."""
    if 0 in shape:
        return False
    moving = [(s, n) for n, s in zip(shape, strides) if n > 1]
    reach = 1  # of the axes with smaller strides, in elements
    for s, n in sorted(moving):
        if s < reach:
            break
        reach += (n - 1) * s
    else:
        return False
    # The first index that differs is, say, larger in the second element; those after it may differ either way.
    return any(
        solvable([(s, 1, n - 1), *((t, 1 - m, m - 1) for t, m in moving[i + 1 :])], 0)
        for i, (s, n) in enumerate(moving)
    )


def overlap(
    address: int, shape: Sequence[int], strides: Sequence[int], size: int,
    other: int, other_shape: Sequence[int], other_strides: Sequence[int], other_size: int,
) -> bool:  # fmt: skip
    """Whether two tensors, at these addresses and with elements of `size` bytes, share a byte."""
    apart = other - address
    if apart >= extent(shape, strides, size) or -apart >= extent(other_shape, other_strides, other_size):
        return False
    unknowns = [(s * size, 0, n - 1) for n, s in zip(shape, strides)] + [(1, 0, size - 1)]
    unknowns += [(-s * other_size, 0, n - 1) for n, s in zip(other_shape, other_strides)] + [(-1, 0, other_size - 1)]
    return solvable(unknowns, apart)
