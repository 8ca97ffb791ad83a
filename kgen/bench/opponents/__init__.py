"""Opponents: what kgen is measured against. One module each, and the module's name is the opponent's.

A module says what it cannot do (`why_not`) and prepares the call that is checked and timed (`prepare`). One that moves
or computes something else, as a yardstick, sets COMPUTES = False and checks itself. To add one, add a file here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import Problem

#: Tensors by the names of a problem's operands. One set for each turn of the rotation; inputs are shared, do not write them.
Operands = dict[str, Any]

#: Launches on the current stream with the operand set of that index. The outputs are then in the set, either written into
#: the tensors that were there or put in their place. One that leaves them in another form has a method `settle(index)`, which
#: brings them into the problem's form; it is called to check them and is not timed.
Launch = Callable[[int], None]


@dataclass(frozen=True)
class Opponent:
    """`why_not(problem)` is the reason it cannot compute a problem, or None. `prepare(problem, sets, scalars)` does all
    that need not be repeated, such as compiling or tuning, and returns the Launch. `describe` tells what runs."""

    name: str
    why_not: Callable[[Problem], str | None]
    prepare: Callable[[Problem, list[Operands], Mapping[str, float]], Launch]
    computes: bool = True
    describe: Callable[[Problem], str] = lambda problem: ""


@dataclass(frozen=True)
class Absent:
    """An opponent that cannot be imported here, or not together with this torch."""

    name: str
    reason: str


def names() -> tuple[str, ...]:
    """The opponents there are, installed or not."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load(name: str) -> Opponent | Absent:
    """The opponent with that name, Absent when what it needs is not installed. ArgumentError when there is none."""
    if name not in names():
        raise ArgumentError(f"unknown opponent {name!r}; expected one of {', '.join(names())}")
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except (ImportError, RuntimeError, OSError) as error:  # not there, or made for another torch
        return Absent(name, str(error))
    return Opponent(name, module.why_not, module.prepare, getattr(module, "COMPUTES", True))
