"""kgen as one side of a comparison: the operator as its users call it, with the config that dispatch chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kgen.bench.opponents import Launch, Operands, Opponent
from kgen.bench.result import SUBJECT
from kgen.dsl.operator import Operator
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of
from kgen.dsl.target import Target


def callable_on_tensors(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator as a function of torch tensors: a definition becomes one, anything else is one already."""
    if not isinstance(operator, Operator):
        return operator
    from kgen.runtime.operator import KernelOperator

    return KernelOperator(operator)


def subject(operator: Callable[..., Any], device: int | None, target: Target) -> Opponent:
    """The participant that calls `operator(*inputs, out=..., **scalars)`. Device None is the CPU: kgen runs on the emulator."""
    call = callable_on_tensors(operator)

    def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
        outputs = [o.name for o in problem.outputs]

        def bound(operands: Operands) -> Any:
            out = [operands[name] for name in outputs]
            inputs = [operands[o.name] for o in problem.inputs]
            return partial(call, *inputs, out=out[0] if len(out) == 1 else tuple(out), **scalars)

        calls = [bound(operands) for operands in sets]

        def launch(i: int) -> None:
            calls[i]()

        return launch

    def describe(problem: Problem) -> str:
        return config_used(call, problem, device, target)

    return Opponent(SUBJECT, lambda problem: None, prepare, describe=describe)


def config_used(call: object, problem: Problem, device: int | None, target: Target) -> str:
    """The config that a call of an operator runs with, of each launch, and how dispatch came to it; "" for any other function."""
    from kgen.runtime import dispatch
    from kgen.runtime.operator import KernelOperator

    if not isinstance(call, KernelOperator):
        return ""
    if call.pinned is not None:
        return f"{call.pinned!r} (given)"
    restriction = call.restriction
    if device is None:
        choices = [dispatch.default(one, dispatch.EMULATED, restriction) for one in program_of(problem).launches]
    else:
        choices = [dispatch.serve(one, target, restriction, of=problem) for one in program_of(problem).launches]
    return "; then ".join(f"{choice.config!r} ({choice.how})" for choice in choices)
