"""Shared memory of strided tensors, against a count of every byte."""

import random

import pytest

from kgen.runtime.overlap import extent, overlap, overlaps_itself, solvable


def addresses(shape, strides, size, start=0):
    found = [start]
    for n, s in zip(shape, strides):
        found = [a + i * s * size for a in found for i in range(n)]
    return found


def tensor(rng):
    """Shape, strides in elements, element size."""
    rank = rng.randint(0, 3)
    return (
        tuple(rng.randint(1, 4) for _ in range(rank)),
        tuple(rng.randint(0, 9) for _ in range(rank)),
        rng.choice((1, 2, 4)),
    )


def test_random_tensors_agree_with_counting():
    rng = random.Random(0)
    met = 0
    for _ in range(3000):
        a, b = tensor(rng), tensor(rng)
        start = rng.randint(-40, 40)
        mine = {x + i for x in addresses(*a) for i in range(a[2])}
        theirs = {x + i for x in addresses(*b, start) for i in range(b[2])}
        assert overlap(0, *a, start, *b) == bool(mine & theirs), (a, start, b)
        met += bool(mine & theirs)
        elements = addresses(*a)
        assert overlaps_itself(a[0], a[1]) == (len(set(elements)) < len(elements)), a
        assert extent(*a) == max(elements) + a[2]
    assert 500 < met < 2500  # both answers occur


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((128, 64), (128, 1), False),
        ((128, 129), (128, 1), True),
        ((4, 4), (0, 1), True),
        ((1, 4), (0, 1), False),
        ((0, 4), (0, 0), False),
        ((1 << 20, 1 << 20), (1 << 20, 1), False),
        ((3, 2), (2, 3), False),  # interleaved, all six differ
        ((4, 3), (2, 3), True),  # 3 * 2 == 2 * 3
    ],
)
def test_overlap_within_one_tensor(shape, strides, expected):
    assert overlaps_itself(shape, strides) is expected


def test_columns_of_one_matrix_do_not_meet():
    halves = ((4096, 64), (128, 1), 2)
    assert not overlap(0, *halves, 128, *halves)
    assert overlap(0, *halves, 126, *halves)
    every_other = ((1 << 20,), (2,), 4)
    assert not overlap(0, *every_other, 4, *every_other)
    assert overlap(0, *every_other, 2, *every_other)


def test_empty_tensors_meet_nothing():
    assert not overlap(0, (0, 4), (4, 1), 4, 0, (4,), (1,), 4)


def test_a_contrived_equation_ends_with_may():
    assert solvable([(p, 0, 10**9) for p in (10007, 10009, 10037, 10039)], 10**12 + 1) is True
