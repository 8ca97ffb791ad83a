"""Operators that are made of operators, with configs of their own, and what pickles say of both."""

from __future__ import annotations

import sys
from typing import Any, TypeVar, cast

from kgen.dsl.restriction import Restriction
from kgen.dsl.schedule import Schedule


class Constant:
    """An operator to copies and pickles: a constant of its module, so that copies are the same object and pickles name it.

    One that restricts another, as `using` gives, is made anew of that.
    """

    def __reduce__(self) -> str | tuple[Any, ...]:
        own: Any = self
        of: Any = sys.modules.get(own.__module__)
        for name in own.__qualname__.split("."):
            of = getattr(of, name, None)
        if of is not own and isinstance(of, type(own)) and of.definition is own.definition:
            return restricted, (of, own.pinned, own.restriction)
        return str(own.__qualname__)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self


C = TypeVar("C", bound="Constant")


def restricted(of: C, config: Schedule | None, restriction: Restriction) -> C:
    """An operator with a config, or configs, of its own, and the gradient that it was given."""
    own: Any = of
    made = type(own)(own.definition, config, restriction)
    made.__module__ = own.__module__  # of a shipped one that where its users find it
    if own.own_gradient is not None:
        made.take_gradient(own.own_gradient)
    return cast(C, made)
