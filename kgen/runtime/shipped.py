"""The shipped operators as operators that run, by their names. Without torch, as is defining one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from kgen import ops
from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import Operator
from kgen.runtime.operator import KernelOperator

if TYPE_CHECKING:
    from kgen.tuner.outcome import Outcome


def tune(operator: KernelOperator | Operator | str, /, *arguments: Any, **named: Any) -> Outcome:
    """`operator.tune(...)` of an operator or of the shipped one with that name."""
    if isinstance(operator, str):
        operator = shipped(operator)
    if isinstance(operator, Operator):
        operator = KernelOperator(operator)
    if not isinstance(operator, KernelOperator):
        raise ArgumentError(f"tune expects an operator or the name of a shipped one, got {operator!r}")
    return operator.tune(*arguments, **named)


def shipped(name: str) -> KernelOperator:
    """The shipped operator of that name or alias; always the same object. Raises an error that is an AttributeError too."""
    return _shipped(ops.operator(name).name)


@functools.cache
def _shipped(name: str) -> KernelOperator:
    found = KernelOperator(ops.operator(name))
    found.__module__ = "kgen"
    return found
