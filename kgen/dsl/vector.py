"""Arithmetic over numbers or over arrays of them, so that a model or a rule is one text for a config and for all of a space.

Of arrays it is numpy's, which whoever made them has loaded: this module imports nothing. `&`, `|`, comparisons and the four
operations need no help; `not`, `and`, `or`, `if` and `in` take one truth value and do not go with arrays.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

#: A number, a truth value, or an array of them.
Vector = Any
F = TypeVar("F", bound=Callable[..., Any])

_NUMBERS = (int, float)  # bool is one


@functools.cache
def _numpy() -> Any:
    return sys.modules["numpy"]


def minimum(a: Vector, b: Vector, *more: Vector) -> Vector:
    """The smaller of each, or the smallest of several."""
    for other in (b, *more):
        both = isinstance(a, _NUMBERS) and isinstance(other, _NUMBERS)
        a = min(a, other) if both else _numpy().minimum(a, other)
    return a


def maximum(a: Vector, b: Vector, *more: Vector) -> Vector:
    """The larger of each, or the largest of several."""
    for other in (b, *more):
        both = isinstance(a, _NUMBERS) and isinstance(other, _NUMBERS)
        a = max(a, other) if both else _numpy().maximum(a, other)
    return a


def where(condition: Vector, yes: Vector, no: Vector) -> Vector:
    """`yes` where the condition holds, else `no`; both are evaluated."""
    if isinstance(condition, _NUMBERS):
        return yes if condition else no
    return _numpy().where(condition, yes, no)


def negated(condition: Vector) -> Vector:
    """Where the condition does not hold."""
    return not condition if isinstance(condition, _NUMBERS) else ~condition


def anywhere(condition: Vector) -> bool:
    """Whether the condition holds, or does for one of an array."""
    return bool(condition if isinstance(condition, _NUMBERS) else condition.any())


def gcd(a: Vector, b: Vector) -> Vector:
    """The greatest common divisor."""
    return math.gcd(a, b) if isinstance(a, int) and isinstance(b, int) else _numpy().gcd(a, b)


def ceil_div(a: Vector, b: Vector) -> Vector:
    """The smallest integer not below a / b, of integers below 2^53; of arrays as floats, which divide ten times as fast."""
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return -(-a // b)
    return _numpy().ceil(a / b)


def ceil(x: Vector) -> Vector:
    """The smallest integer not below x."""
    return math.ceil(x) if isinstance(x, _NUMBERS) else _numpy().ceil(x)


def sqrt(x: Vector) -> Vector:
    """The square root."""
    return math.sqrt(x) if isinstance(x, _NUMBERS) else _numpy().sqrt(x)


def log2(x: Vector) -> Vector:
    """The logarithm to base 2."""
    return math.log2(x) if isinstance(x, _NUMBERS) else _numpy().log2(x)


def floor(x: Vector) -> Vector:
    """The largest integer not above x."""
    return math.floor(x) if isinstance(x, _NUMBERS) else _numpy().floor(x)


def at_most(x: Vector, values: Sequence[int], other: int) -> Vector:
    """The largest of `values`, which ascend, that is no more than x; `other` where none is."""
    found = (other, *values)
    if isinstance(x, _NUMBERS):
        return found[bisect.bisect_right(values, x)]
    if not hasattr(x, "searchsorted"):  # traced
        return functools.reduce(lambda below, value: where(x >= value, value, below), values, other)
    return _numpy().array(found)[_numpy().searchsorted(values, x, side="right")]


def at_least(x: Vector, values: Sequence[int], other: int) -> Vector:
    """The smallest of `values`, which ascend, that is no less than x; `other` where none is."""
    found = (*values, other)
    if isinstance(x, _NUMBERS):
        return found[bisect.bisect_left(values, x)]
    if not hasattr(x, "searchsorted"):  # traced
        return functools.reduce(lambda above, value: where(x <= value, value, above), reversed(values), other)
    return _numpy().array(found)[_numpy().searchsorted(values, x, side="left")]


def each(function: Callable[..., Any], *given: Vector) -> Vector:
    """The values of a function of numbers or texts, asked once for equal ones; of one that gives several, rows of them."""
    if all(isinstance(x, (str, *_NUMBERS)) for x in given):
        return function(*given)
    rows = [*zip(*(x.tolist() if hasattr(x, "__len__") else itertools.repeat(x) for x in given))]
    known = {row: function(*row) for row in dict.fromkeys(rows)}
    return _numpy().array([known[row] for row in rows])


def lanes(count: int, function: Callable[[Vector], Vector]) -> Vector:
    """The values of a function of a lane's number: a list of numbers, or an array with a row for each of `count` lanes."""
    if isinstance(function(0), _NUMBERS):
        return [function(lane) for lane in range(count)]
    return function(_numpy().arange(count, dtype="int32")[:, None])


def most_alike(values: Vector, kinds: int) -> Vector:
    """How many different ones of `values` (a list, or the rows of an array) are the same modulo `kinds`, at most."""
    if isinstance(values, list):
        found = [value % kinds for value in set(values)]
        return max(map(found.count, found))
    values, numpy = _numpy().sort(values, axis=0), _numpy()
    count = values.shape[1]
    places = values % kinds + kinds * numpy.arange(count)
    places[1:][values[1:] == values[:-1]] = kinds * count  # counted already
    return numpy.bincount(places.ravel(), minlength=kinds * count)[: kinds * count].reshape(count, kinds).max(axis=1)


def rounded(x: Vector) -> Vector:
    """The nearest integer, of two the even one."""
    return round(x) if isinstance(x, _NUMBERS) else _numpy().rint(x)


def chosen(x: Vector, values: Mapping[Any, Any], other: Any = 0) -> Vector:
    """The value of a table for each x, a text or a number; `other` for what it does not have."""
    if isinstance(x, (str, *_NUMBERS)):
        return values.get(x, other)
    if hasattr(x, "chosen"):  # a column of texts
        return x.chosen(values, other)
    found: Vector = other
    for key, value in values.items():
        found = _numpy().where(x == key, value, found)
    return found


def of_class(function: F) -> F:
    """Has a function of a config that reads no sizes asked once a class of problems, of all its configs (`kgen.tuner.columns`).

    It may read what `Schedule.class_of` says of a problem.
    """
    return _once(function, 0)


def of_shape(function: F) -> F:
    """Has a function of a config that reads no field of `by_size` or `last` asked once a shape, of its configs."""
    return _once(function, 1)


def of_sizes(function: F) -> F:
    """Has a function of a config that reads no field of `last` asked once a shape, of its configs with those of `by_size`."""
    return _once(function, 2)


def _once(function: F, level: int) -> F:
    @functools.wraps(function)
    def found(config: Any, *rest: Any) -> Any:
        values = config.__dict__["_values"]
        try:
            return values.found[function]  # of a table
        except KeyError:
            return values.once(function, rest, level)
        except AttributeError:
            return function(config, *rest)

    return found  # type: ignore[return-value]  # of the same signature
