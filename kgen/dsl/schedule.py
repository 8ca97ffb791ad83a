"""Schedule: a template's tile parameters with their domains and the constraints on them. An instance is a Config.

A subclass names its template, lists its fields with `choice(...)` in the order a search should fix them, and states every
constraint once as a `@rule` method whose docstring is the reason it prints. Rules prune the search, guard the launch and
feed the tests.

`MmaGemm.where(BM=(64, 128))` is a SearchSpace: the same configs with other domains. A subclass of a schedule, on the same
template, is a schedule of its own, whose configs bear its name: it may give fields other domains and add rules.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, Union

from kgen.dsl.choice import Choice, Rule, Value, listed, reason_of
from kgen.dsl.errors import ConfigError, DefinitionError, KgenError
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem
from kgen.dsl.size import Size
from kgen.dsl.target import Arch, Target
from kgen.dsl.vector import Vector

#: The values of the fields that make a kernel one of a kind; and such kinds by the names that people know them by.
Technique = Mapping[str, Union[Value, tuple[Value, ...]]]
Techniques = Mapping[str, Technique]
S = TypeVar("S", bound="Schedule")


@dataclass(frozen=True)
class Rejection:
    """A rule that a config breaks, and why."""

    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}"


class Schedule:
    """Base of all schedules. See the module's docstring; subclasses live in `kgen.ops`.

    `template` is the file under templates/, a user's own by its whole path; `target` the architecture it needs; `version` is
    raised when the meaning of a field changes, so that stored configs of the old meaning are not used. Without `by_default`
    only tuning chooses it, which verifies what it chooses: for what has not been seen on a GPU yet. `techniques` are
    kinds of kernels by the names that people know them by: `where(**techniques[name])` are the configs of one. A subclass has
    its own, or one of its name, which all of its configs are.

    The configs of all shapes of a class (`class_of`) are prepared once, as columns (`kgen.tuner.columns`). `by_class` are fields
    whose values follow from the others there, `by_size` fields whose values each shape has its own of (both: `worth`), `last`
    those among which only the best of all others choose, as they make little difference. The rules on the first are `vectorised`,
    those on the others, and those that read sizes otherwise, `sized`. `alike` are fields that all configs of one table share, so
    that methods may branch by them. `one_source`: the source of a config is the same for all problems of a class, but for its
    header. `recorded`: rules and model read sizes by the functions of `kgen.dsl.vector` alone, so that a choice can be recorded
    (`kgen.tuner.recorded`). `side_by_side` are fields that count heads, or the like, which are taken in turn: a kernel is
    verified on more. `model` are the constants of the model that `estimate` is, where `kgen fit` can fit them.
    """

    template: ClassVar[str]
    target: ClassVar[Arch]
    by_default: ClassVar[bool] = True
    version: ClassVar[int] = 1
    techniques: ClassVar[Techniques] = {}
    by_class: ClassVar[tuple[str, ...]] = ()
    by_size: ClassVar[tuple[str, ...]] = ()
    last: ClassVar[tuple[str, ...]] = ()
    alike: ClassVar[tuple[str, ...]] = ()
    one_source: ClassVar[bool] = False
    recorded: ClassVar[bool] = False
    side_by_side: ClassVar[tuple[str, ...]] = ()
    model: ClassVar[type[Constants] | None] = None
    fields: ClassVar[dict[str, Choice[Value]]] = {}
    rules: ClassVar[dict[str, Rule]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        members: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            members.update(vars(base))
        cls.fields = {name: member for name, member in members.items() if isinstance(member, Choice)}
        cls._check_template()
        cls.rules = {name: member for name, member in members.items() if getattr(member, "__rule__", False)}
        if "techniques" not in vars(cls):
            cls.techniques = {cls.__name__: {}}
        for technique, domains in cls.techniques.items():
            for name, given in domains.items():
                for value in listed(given):
                    cls.check_value(name, value, DefinitionError, f"technique {technique!r} of ")

    @classmethod
    def _check_template(cls) -> None:
        """Raises DefinitionError where a template of another schedule is asked for what it does not know."""
        own = vars(cls)
        base = next((b for b in cls.__mro__[1:] if issubclass(b, Schedule) and vars(b).get("template")), None)
        if base is None or "template" in own or "source" in own:
            return
        for name in [name for name, member in own.items() if isinstance(member, Choice)]:
            if name not in base.fields:
                raise DefinitionError(
                    f"{cls.__name__} has the field {name}, which {base.template} of {base.__name__} does not know; its fields "
                    f"are {', '.join(base.fields)} (a subclass with a field of its own needs a template or source of its own)"
                )
            for value in cls.fields[name].values:
                base.check_value(name, value, DefinitionError, f"{cls.__name__}: ")

    @classmethod
    def check_value(cls, name: str, value: object, error: type[KgenError] = ConfigError, where: str = "") -> None:
        """Raises an error where there is no such field, or where its template does not take the value."""
        if name not in cls.fields:
            raise error(f"{where}{cls.__name__} has no field {name}; its fields are {', '.join(cls.fields)}")
        if value not in cls.fields[name]:
            raise error(f"{where}{cls.__name__}: {name}={value!r} is outside its domain {cls.fields[name].told}")

    @classmethod
    def where(cls, /, **domains: Value | Collection[Value]) -> SearchSpace:
        """This schedule's configs with these values of some fields, a value or several: `MmaGemm.where(BM=(64, 128), stages=3)`.

        They may be outside the domain that is searched otherwise, where the template takes them. Raises ConfigError for a field
        that is not there and for a value that the template does not take.
        """
        return SearchSpace(cls).where(**domains)

    def __init__(self, /, **values: Value) -> None:
        values = {**{n: f.absent for n, f in self.fields.items() if f.absent is not None}, **values}
        unknown = sorted(set(values) - set(self.fields))
        missing = [name for name in self.fields if name not in values]
        if unknown or missing:
            told = [f"unknown field {name}" for name in unknown] + [f"missing field {name}" for name in missing]
            raise ConfigError(f"{type(self).__name__}: {', '.join(told)}; its fields are {', '.join(self.fields)}")
        for name in self.fields:
            self.check_value(name, values[name])
        self.__dict__["_values"] = {name: values[name] for name in self.fields}

    @classmethod
    def partial(cls: type[S], values: Mapping[str, Value]) -> S:
        """An instance with only some fields fixed; reading another raises Undecided. For the enumeration."""
        instance = cls.__new__(cls)
        instance.__dict__["_values"] = values
        return instance

    @property
    def values(self) -> dict[str, Value]:
        """Field names and values, in the order of declaration."""
        return dict(self.__dict__["_values"])

    def replace(self: S, **values: Value) -> S:
        """A copy with some fields changed."""
        return type(self)(**{**self.values, **values})

    def __repr__(self) -> str:
        absent = ((f.absent.__class__, f.absent) for f in self.fields.values())
        shown = (f"{k}={v!r}" for (k, v), a in zip(self.values.items(), absent) if (type(v), v) != a)
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.values == self.values

    def __hash__(self) -> int:
        return hash((type(self).__name__, *self.__dict__["_values"].values()))

    @property
    def key(self) -> str:
        """A name for this config that is the same in every process: SHA-256 of its printed form and the version."""
        return hashlib.sha256(f"{self!r} v{self.version}".encode()).hexdigest()[:16]

    def rejections(self, problem: NormalProblem, target: Target) -> list[Rejection]:
        """The rules this config breaks for a problem on a target, each with its reason; empty when it is valid."""
        return [
            Rejection(name, reason_of(test)) for name, test in self.rules.items() if not test(self, problem, target)
        ]

    def broken(self, problem: NormalProblem, target: Target) -> list[Rejection]:
        """The rules without which this config is not right for the problem on a target: those that only prune are left out."""
        return [
            Rejection(name, reason_of(test))
            for name, test in self.rules.items()
            if not self.only_prunes(name) and not test(self, problem, target)
        ]

    @classmethod
    def only_prunes(cls, name: str) -> bool:
        """Whether the rule of that name only keeps the search from a config, see `pruning`."""
        return bool(getattr(cls.rules[name], "__pruning__", False))

    @classmethod
    def is_sized(cls, name: str) -> bool:
        """Whether the rule of that name reads sizes, see `sized`."""
        return bool(getattr(cls.rules[name], "__sized__", False))

    @classmethod
    def is_vectorised(cls, name: str) -> bool:
        """Whether the rule of that name takes arrays and reads no sizes, see `vectorised`."""
        return bool(getattr(cls.rules[name], "__vectorised__", False))

    def check(self, problem: NormalProblem, target: Target) -> None:
        """Raises ConfigError with every reason when this config is not right for the problem on the target; pruned ones are."""
        broken = self.broken(problem, target)
        if broken:
            raise ConfigError(f"{self!r} is not valid for {problem} on {target}: {'; '.join(map(str, broken))}")

    # What a subclass gives.

    @classmethod
    def applies(cls, problem: NormalProblem) -> bool:
        """Whether this schedule can serve the problem at all, before any field is chosen."""
        return True

    @classmethod
    def worth_searching(cls, problem: NormalProblem, target: Target) -> bool:
        """a config of this schedule may be the best on the target, beside the family's other schedules

        As with a rule, the docstring says what is not so where it is False; a search considers none of its configs then.
        """
        return True

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """What rules that are not `sized` depend on: two problems with the same have the same configs but for sizes."""
        return problem

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """The configs that a default is taken from: all, but for fields of which the model likes one value best for any shape."""
        return SearchSpace(cls)

    def worth(self, field: str, problem: NormalProblem, target: Target) -> tuple[Vector, ...]:
        """The values of a field of `by_class` or `by_size` that a search considers, beside the fields that are fixed already.

        What rules leave out may be among them. Of several columns a 0 is no value. Of a schedule with a shortlist they are those
        that a default considers.
        """
        return self.fields[field].values

    def misfit(self, problem: NormalProblem, target: Target) -> Vector:
        """How far this config is from what was measured to be best, where the model does not tell; 0 is the least.

        A default is the best by the model of those that are least far.
        """
        return 0

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> Schedule:
        """A config that is valid and decent for the problem, found without search or measurement."""
        raise NotImplementedError

    @staticmethod
    def symbols(problem: NormalProblem) -> dict[str, int]:
        """The integers a launch depends on, by name: sizes and strides. One Source serves all their values."""
        return problem.sizes

    def loops(self, problem: NormalProblem) -> tuple[tuple[Size, Size], ...]:
        """The loops that use something over again: what each goes over, and how much of it all blocks take before they do.

        Over the symbols and SM_COUNT: `(Dim("K"), BK * stages)` for a ring of stages. A kernel is verified over more than two
        such turns. Loops of blocks over tiles need no mention: they show in the launch.
        """
        return ()

    def source(self, problem: NormalProblem) -> Any:
        """The generated kernel (`kgen.codegen.source.Source`) of this config for a problem."""
        raise NotImplementedError

    def estimate(self, problem: NormalProblem, target: Target) -> float:
        """Modelled time in seconds on the target. Only for ranking and for reports marked modelled."""
        raise NotImplementedError


@dataclass(frozen=True)
class SearchSpace:
    """Configs of one schedule: fields named in `domains` have the values given there, the others those of the schedule.

    Made by `Schedule.where`. The text of it names the set in the database.
    """

    schedule: type[Schedule]
    domains: tuple[tuple[str, tuple[Value, ...]], ...] = ()

    @functools.cached_property
    def fields(self) -> dict[str, tuple[Value, ...]]:
        """The values of every field, in the schedule's order of fields."""
        changed = dict(self.domains)
        return {name: changed.get(name, field.values) for name, field in self.schedule.fields.items()}

    def where(self, /, **domains: Value | Collection[Value]) -> SearchSpace:
        """Those of its configs with these values of some fields; see `Schedule.where`. ConfigError where it has no such value."""
        changed = dict(self.domains)
        for name, given in domains.items():
            values = listed(given)
            if not values:
                raise ConfigError(f"{self}: {name} is given no value; expected one or several")
            for value in values:
                self.schedule.check_value(name, value)
                if name in changed and (type(value), value) not in [(type(v), v) for v in changed[name]]:
                    raise ConfigError(f"{name}={value!r} is not in {self}")
            changed[name] = self._ordered(name, values)
        return SearchSpace(self.schedule, tuple((n, changed[n]) for n in self.schedule.fields if n in changed))

    def _ordered(self, name: str, values: Collection[Any]) -> tuple[Value, ...]:
        """Each value once: in the order of the domain, then the others by size."""
        known = self.schedule.fields[name].values
        return (*(v for v in known if v in values), *sorted({v for v in values if v not in known}))

    def __contains__(self, config: object) -> bool:
        if type(config) is not self.schedule:
            return False
        assert isinstance(config, Schedule)
        return all(config.values[name] in values for name, values in self.fields.items())

    def __str__(self) -> str:
        told = (f"{name}={'|'.join(map(repr, values))}" for name, values in self.domains)
        return f"{self.schedule.__name__}({', '.join(told)})"


def as_space(space: type[Schedule] | SearchSpace) -> SearchSpace:
    """A schedule as the space of all its configs; a space as it is."""
    return space if isinstance(space, SearchSpace) else SearchSpace(space)


def default_of(schedule: type[Schedule], problem: NormalProblem, target: Target) -> Schedule:
    """`schedule.default`, looked for once a (normalised) problem and target: that takes up to a second."""
    return _default_of(schedule, problem, target)  # type: ignore[arg-type]  # mypy takes the hash of instances


@functools.lru_cache(maxsize=256)
def _default_of(schedule: type[Schedule], problem: NormalProblem, target: Target) -> Schedule:
    return schedule.default(problem, target)


_sources: dict[tuple[Schedule, Hashable], Any] = {}
#: Sources that are kept.
_MOST = 1024


def source_of(config: Schedule, problem: NormalProblem) -> Any:
    """`config.source`, made once a class where that has one: its header may be of another problem. For what launches it."""
    if not config.one_source:
        return config.source(problem)
    key = config, config.class_of(problem)
    found = _sources.get(key)
    if found is None:
        if len(_sources) >= _MOST:
            _sources.clear()
        found = _sources[key] = config.source(problem)
    return found


def domain_size(space: type[Schedule] | SearchSpace) -> int:
    """The number of points of the product of the domains, constraints not counted."""
    return math.prod(map(len, as_space(space).fields.values()))
