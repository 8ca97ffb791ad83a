"""Choices and rules: the fields of a Schedule with their domains, and the constraints on them, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any, Generic, TypeVar, Union, overload

from kgen.dsl.errors import ConfigError, DefinitionError

Value = Union[int, str, bool]
V = TypeVar("V", bound=Value)


class Choice(Generic[V]):
    """A field of a Schedule and its domain. Reading it from an instance gives the instance's value.

    `values` are those that a search considers; `allows` are more that the template takes, for who asks for them.
    """

    name: str

    def __init__(self, values: tuple[V, ...], allows: Collection[V] = (), absent: V | None = None) -> None:
        if not values or len(set(map(repr, values))) != len(values):
            raise DefinitionError(f"choice needs distinct values, got {values!r}")
        if not all(isinstance(value, (int, str)) for value in values):
            raise DefinitionError(f"choice expects ints, texts or bools, got {values!r}")
        self.values, self.allows, self.absent = values, allows, absent
        self._domain = frozenset((type(v), v) for v in (*values, *allows))
        if absent is not None and absent not in self:
            raise DefinitionError(f"choice of {self.told} has no {absent!r} for configs without the field")

    def __contains__(self, value: object) -> bool:
        """Whether the template takes a value: it equals one of them, and is of the same type (True is not 1)."""
        try:
            return (type(value), value) in self._domain
        except TypeError:  # not hashable, so none of them
            return False

    @property
    def told(self) -> str:
        """What the template takes, for messages."""
        more = f"; its template also takes {_told(self.allows)}" if self.allows else ""
        return f"{', '.join(map(repr, self.values))}{more}"

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Choice[V]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> V: ...
    def __get__(self, instance: object, owner: type) -> Choice[V] | V:
        if instance is None:
            return self
        values: dict[str, V] = instance.__dict__["_values"]
        try:
            return values[self.name]
        except KeyError:
            raise Undecided(self.name) from None

    def __set__(self, instance: object, value: Value) -> None:
        raise ConfigError(f"{type(instance).__name__} is frozen; make a new one with replace({self.name}={value!r})")


def listed(given: Any) -> tuple[Any, ...]:
    """What is given as a value or several."""
    return tuple(given) if isinstance(given, (tuple, list, set, frozenset, range)) else (given,)


def _told(values: Collection[Value]) -> str:
    if isinstance(values, range) and len(values) > 3:
        return f"{values[0]}, {values[1]}, ... {values[-1]}"
    return ", ".join(map(repr, values))


def choice(*values: V, allows: Collection[V] = (), absent: V | None = None) -> Choice[V]:
    """Declares a field with the given domain: `BM = choice(64, 128, 256)`. The first value is the plainest one.

    `allows` are values beside them that the template takes too: no search considers them, but `where` and subclasses may.
    `absent` is for a field that a schedule was given later: what configs have that do not name it. With that value a config
    prints without the field, so that what was stored before keeps its text, its key and its meaning.
    """
    return Choice(values, allows, absent)


Rule = Callable[[Any, Any, Any], bool]
R = TypeVar("R", bound=Rule)


def rule(function: R) -> R:
    """Marks a method `(self, problem, target) -> bool` as a constraint. Its docstring is the reason it prints.

    A rule may read the fields in any order; the enumeration decides it as soon as all it reads is known.
    """
    if not isinstance(function, FunctionType):
        raise DefinitionError(f"rule marks a method of a Schedule, got {type(function).__name__} {function!r}")
    if not (function.__doc__ or "").strip():
        raise DefinitionError(f"rule {function.__name__} needs a docstring: the reason it prints")
    function.__rule__ = True  # type: ignore[attr-defined]
    return function


def pruning(function: R) -> R:
    """Marks a rule that only keeps the search from configs that are never the best: one that breaks it still computes right."""
    marked = rule(function)
    marked.__pruning__ = True  # type: ignore[attr-defined]
    return marked


def sized(function: R) -> R:
    """Marks a rule that reads sizes of the problem beyond its class, or a field that is chosen by them; see `Schedule.by_size`.

    Such a rule takes arrays as well as values (`kgen.dsl.vector`), for it is asked anew for each shape, of all configs at once.
    """
    function.__sized__ = True  # type: ignore[attr-defined]
    return function


def vectorised(function: R) -> R:
    """Marks a rule that takes arrays as well and reads no sizes: it is asked once a class, of all configs at once."""
    function.__vectorised__ = True  # type: ignore[attr-defined]
    return function


class Undecided(Exception):
    """A field was read that a partial config has not fixed yet. Only the enumeration sees it."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


def reason_of(test: Callable[..., bool]) -> str:
    """The reason a rule prints: the first paragraph of its docstring on one line."""
    return " ".join((test.__doc__ or "").split("\n\n")[0].split())
