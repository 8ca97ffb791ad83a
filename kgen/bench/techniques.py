"""Techniques: a participant for each kind of kernel that the schedules name, with the best config known of that kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kgen.bench.opponents import Launch, Operands, Opponent
from kgen.bench.subject import subject
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule, Value, listed
from kgen.gpu.target import Target
from kgen.runtime import dispatch
from kgen.runtime.operator import KernelOperator

#: Told to find a good config of a restricted operator for a problem, before that is measured.
Tune = Callable[[KernelOperator, Problem], object]


def techniques(
    operator: KernelOperator, device: int | None, target: Target, tune: Tune | None = None
) -> list[Opponent]:
    """A participant for each technique (`Schedule.techniques`) of the operator's schedules, in their order.

    It declines a problem that it has no config for, with the rule that leaves none. `tune` is called before each is
    measured; without it the best known config is taken, else the model's best. Device None is the CPU.
    """
    own = {space.schedule: dict(space.domains) for space in operator.restriction.spaces}
    found = []
    for schedule in own or family_of(operator.definition.graphs[0]).schedules:
        for name, domains in schedule.techniques.items():
            narrowed = _common(domains, own.get(schedule, {}))
            if narrowed is not None:
                found.append(
                    _participant(f"{schedule.__name__}: {name}", schedule, narrowed, operator, device, target, tune)
                )
    return found


def _common(
    domains: Mapping[str, Value | tuple[Value, ...]], own: Mapping[str, tuple[Value, ...]]
) -> dict[str, tuple[Value, ...]] | None:
    """The values of a technique that an operator's own domains leave; None where they leave none of a field."""
    values = {name: listed(given) for name, given in domains.items()}
    kept = {name: tuple(v for v in several if v in own.get(name, several)) for name, several in values.items()}
    return kept if all(kept.values()) else None


def _participant(
    name: str,
    schedule: type[Schedule],
    domains: Mapping[str, tuple[Value, ...]],
    operator: KernelOperator,
    device: int | None,
    target: Target,
    tune: Tune | None,
) -> Opponent:
    of_it = operator.using(schedule.where(**domains))
    side = subject(of_it, device, target)

    def why_not(problem: Problem) -> str | None:
        try:
            dispatch.default(problem, dispatch.EMULATED if device is None else target, of_it.restriction)
        except ConfigError as error:
            return str(error)
        return None

    def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
        if tune is not None:
            tune(of_it, problem)
        return side.prepare(problem, sets, scalars)

    return Opponent(name, why_not, prepare, describe=side.describe)
