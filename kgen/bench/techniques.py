"""Techniques: a participant for each kind of kernel that the schedules name, with the best config known of that kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kgen.bench.opponents import Launch, Operands, Opponent
from kgen.bench.subject import subject
from kgen.dsl.choice import Value, listed
from kgen.dsl.errors import ConfigError, KgenError
from kgen.dsl.family import family_of
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.runtime import dispatch
from kgen.runtime.operator import KernelOperator
from kgen.runtime.tuning import tune_problem
from kgen.tuner.budget import Budget
from kgen.tuner.supervisor import idle_workers


def narrowed(operator: KernelOperator) -> dict[str, KernelOperator]:
    """The operator with only the configs of a technique (`Schedule.techniques`), for each one of its schedules in their order."""
    own = {space.schedule: dict(space.domains) for space in operator.restriction.spaces}
    found = {}
    for schedule in own or family_of(operator.definition.graphs[0]).schedules:
        for name, domains in schedule.techniques.items():
            values = _common(domains, own.get(schedule, {}))
            if values is not None:
                found[f"{schedule.__name__}: {name}"] = operator.using(schedule.where(**values))
    return found


def _common(
    domains: Mapping[str, Value | tuple[Value, ...]], own: Mapping[str, tuple[Value, ...]]
) -> dict[str, tuple[Value, ...]] | None:
    """The values of a technique that an operator's own domains leave; None where they leave none of a field."""
    values = {name: listed(given) for name, given in domains.items()}
    kept = {name: tuple(v for v in several if v in own.get(name, several)) for name, several in values.items()}
    return kept if all(kept.values()) else None


def tune_each(
    operator: KernelOperator, problems: Iterable[Problem], budget: Budget, device: int, tell: Callable[[str], None]
) -> None:
    """Tunes each technique for each problem within its own configs, then the operator, which knows what all of them found.

    A technique without a config for a problem is passed over; `tell` hears of it, and of each one that is begun.
    """
    with idle_workers() as idle:
        for problem in problems:
            for one in (*narrowed(operator).values(), operator):
                tell(f"tuning {problem} among {one.restriction or 'all configs'}")
                try:
                    tune_problem(problem, budget=budget, gpu=device, idle=idle, restriction=one.restriction)
                except KgenError as error:
                    tell(str(error))


def techniques(operator: KernelOperator, device: int | None, target: Target) -> list[Opponent]:
    """A participant for each of the operator's techniques: with the best config known of it, else the model's best.

    It declines a problem that it has no config for, with the rule that leaves none. Device None is the CPU.
    """
    return [_participant(name, one, device, target) for name, one in narrowed(operator).items()]


def _participant(name: str, operator: KernelOperator, device: int | None, target: Target) -> Opponent:
    side = subject(operator, device, target)

    def why_not(problem: Problem) -> str | None:
        try:
            dispatch.default(problem, dispatch.EMULATED if device is None else target, operator.restriction)
        except ConfigError as error:
            return str(error)
        return None

    def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
        return side.prepare(problem, sets, scalars)

    return Opponent(name, why_not, prepare, describe=side.describe)
