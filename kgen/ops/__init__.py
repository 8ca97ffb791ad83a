"""The shipped operators and the families that serve them. Importing this registers every family.

A file of operators ends with `OPERATORS`, the tuple of what it ships; a family's file registers itself. Both kinds are
listed here once.
"""

from __future__ import annotations

import difflib
import functools
from importlib import import_module

from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import Operator
from kgen.ops import elementwise as elementwise

#: The modules with operators. They are loaded by the first use of `operators`, since tracing takes some milliseconds.
_MODULES = ("pointwise",)

#: Other names that the field uses for an operator.
ALIASES = {"swish": "silu"}


class UnknownOperatorError(ArgumentError, AttributeError):
    """No operator has that name."""


@functools.cache
def operators() -> dict[str, Operator]:
    """The shipped operators by name."""
    found = [operator for name in _MODULES for operator in import_module(f"{__name__}.{name}").OPERATORS]
    return {operator.name: operator for operator in found}


def operator(name: str) -> Operator:
    """The shipped operator of that name or alias. Raises UnknownOperatorError, which names the nearest ones."""
    known = operators()
    found = known.get(ALIASES.get(name, name))
    if found is None:
        near = difflib.get_close_matches(name, [*known, *ALIASES], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(known)}"
        raise UnknownOperatorError(f"no operator or public name {name!r}: {hint}")
    return found
