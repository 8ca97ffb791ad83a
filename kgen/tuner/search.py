"""Search: which config to try next, and when to stop. The only place with optuna.

Seeds come first: the default, then the top of the model's ranking, all some way apart. After them "posterior" asks for the
config that is likeliest to be more than 1% faster than the best, see `posterior.py`, and each fifth time for what TPE proposes,
which does not believe the model. "tpe" and "random" are optuna's alone, walked field by field down the diagram of the valid
configs: each field is suggested among the values that some valid config has, under a name made of the field and this set (an
optuna parameter has one set of choices for ever), so that every proposal is valid. "ranking" follows the model alone. A config
that is known is never proposed: the sampler's second choice is then the best-ranked unknown neighbour of what it wanted. Where
the budget reaches all of the space, the order is the model's. The study lives in memory; results known from before are added
to it, and the database is the only truth.

Whoever proposes, a search is settled when the posterior's chance that any config left is more than 1% faster has been at most
CHANCE after each of the last PATIENCE trials. One such verdict may be wrong, as the posterior's errors are those of a model;
the trials in between are of the configs that would show it. Where the posterior proposes, it is settled too when FRUITLESS
trials found nothing more than 1% faster, a find halving their number, whatever chance the posterior still sees: each was the
likeliest to.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kgen.dsl.errors import ArgumentError
from kgen.dsl.schedule import Schedule
from kgen.tuner.candidates import Candidates
from kgen.tuner.posterior import GAIN, Posterior, Prospect

if TYPE_CHECKING:
    import optuna

SAMPLERS = ("posterior", "tpe", "random", "ranking")
#: How many configs of the ranking are tried before a sampler takes over.
SEEDS = 16
#: A search ends after PATIENCE trials with at most this chance that something is left to find. Both, and TPE's share, were
#: chosen by replaying searches on spaces timed whole: docs/notes/search.md.
CHANCE, PATIENCE = 0.1, 8
#: Of so many failures in a row the rate of success is below 3 / 32, about CHANCE, with 95% confidence (the rule of three).
FRUITLESS = 32
_TPE_EVERY = 10


class Sampler(Protocol):
    """Proposes configs. It may repeat itself; the search does not."""

    def propose(self) -> Schedule:
        """A valid config."""

    def learn(self, config: Schedule, seconds: float | None) -> None:
        """Takes a result; None for a config that failed."""


class RankingSampler:
    """The model's ranking, then anything."""

    def __init__(self, candidates: Candidates, seed: int) -> None:
        self._candidates = candidates
        self._ranked = iter(candidates.ranking)
        self._source = random.Random(seed)

    def propose(self) -> Schedule:
        config = next(self._ranked, None)
        return config if config is not None else _draw(self._candidates, self._source)

    def learn(self, config: Schedule, seconds: float | None) -> None:
        pass


class OptunaSampler:
    """One of optuna's samplers on the diagram of the valid configs.

    optuna is told of results when it is to propose, before which most searches end.
    """

    def __init__(self, candidates: Candidates, kind: str, seed: int) -> None:
        self._kind, self._seed = kind, seed
        self._spaces = {space.schedule.__name__: space for space in candidates.spaces}
        self._untold: list[tuple[Schedule, float | None]] = []

    @functools.cached_property
    def _study(self) -> optuna.Study:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        make = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}[self._kind]
        return optuna.create_study(sampler=make(seed=self._seed), direction="minimize")

    def propose(self) -> Schedule:
        import optuna

        for config, seconds in self._untold:
            self._study.add_trial(self._trial(config, seconds))
        self._untold.clear()
        trial = self._study.ask()
        name = self._suggest(trial, "schedule", tuple(self._spaces))
        space = self._spaces[name]
        node, values = space.root, []
        for field in space.fields:
            value = self._suggest(trial, f"{name}.{field}", tuple(v for v, _ in node.children))
            values.append(value)
            child = node.child(value)
            assert child is not None
            node = child
        # The proposal's outcome comes in by `learn`, or never; the trial itself is done with.
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return space.config(tuple(values))

    def _suggest(self, trial: optuna.Trial, field: str, values: tuple[Any, ...]) -> Any:
        return values[0] if len(values) == 1 else trial.suggest_categorical(f"{field}:{values}", values)

    def learn(self, config: Schedule, seconds: float | None) -> None:
        self._untold.append((config, seconds))

    def _trial(self, config: Schedule, seconds: float | None) -> optuna.trial.FrozenTrial:
        """A result as optuna takes it."""
        import optuna

        name = type(config).__name__
        params: dict[str, Any] = {}
        choices: dict[str, tuple[Any, ...]] = {f"schedule:{tuple(self._spaces)}": tuple(self._spaces)}
        params[next(iter(choices))] = name
        node = self._spaces[name].root
        for field, value in config.values.items():
            values = tuple(v for v, _ in node.children)
            params[f"{name}.{field}:{values}"], choices[f"{name}.{field}:{values}"] = value, values
            child = node.child(value)
            assert child is not None
            node = child
        open_ = {key: values for key, values in choices.items() if len(values) > 1}
        states = optuna.trial.TrialState
        return optuna.trial.create_trial(
            # To TPE a pruned trial is worse than any complete one: what a config that failed is.
            state=states.PRUNED if seconds is None else states.COMPLETE,
            value=seconds,
            params={key: params[key] for key in open_},
            distributions={key: optuna.distributions.CategoricalDistribution(values) for key, values in open_.items()},
        )


class Search:
    """Asks for configs and learns what became of them.

    `limit` is the number of trials there will be time for, None where that is unknown. `known` are results from before, None
    for failures. The default, `first`, and `seeds` configs from the top of the ranking come before what the sampler proposes.
    """

    def __init__(
        self,
        candidates: Candidates,
        *,
        sampler: str = "posterior",
        seed: int = 0,
        limit: int | None = None,
        known: Mapping[Schedule, float | None] | None = None,
        seeds: int = SEEDS,
        first: Iterable[Schedule] = (),
    ) -> None:
        if sampler not in SAMPLERS:
            raise ArgumentError(f"unknown sampler {sampler!r}; expected one of {', '.join(SAMPLERS)}")
        self.candidates = candidates
        self.taken: set[Schedule] = set()
        self._source = random.Random(seed)
        self._posterior = Posterior(candidates)
        self._prospect: Prospect | None = None
        self._proposals = 0
        self._quiet = 0  # the last so many trials left little to find
        self._fruitless = 0  # so many that were timed found nothing; each find halves it
        self._best = math.inf
        self.exhaustive = limit is not None and candidates.count <= limit
        self._sampler: Sampler
        if sampler == "ranking" or self.exhaustive:
            self._sampler = RankingSampler(candidates, seed)
            seeding = [candidates.default]
        else:
            self._sampler = OptunaSampler(candidates, "random" if sampler == "random" else "tpe", seed)
            seeding = candidates.seeds(seeds) if seeds else []
        self._by_posterior = sampler == "posterior" and not self.exhaustive
        self._seeds = [*seeding[:1], *(config for config in first if config in candidates), *seeding[1:]]
        for config, seconds in (known or {}).items():
            if config in candidates:
                self._learn(config, seconds)

    @property
    def exhausted(self) -> bool:
        """Whether every valid config has been asked for or was known."""
        return len(self.taken) >= self.candidates.count

    @property
    def seeding(self) -> bool:
        """Whether the next config is chosen before any result is known."""
        return bool(self._seeds)

    @property
    def settled(self) -> bool:
        """Whether little is left to find: see the module's docstring."""
        return self._quiet >= PATIENCE or (self._by_posterior and not self._seeds and self._fruitless >= FRUITLESS)

    @property
    def chance(self) -> float | None:
        """The chance, as of the last result, that a config left is more than 1% faster; None where too little is known."""
        return self._prospect.chance if self._prospect else None

    def ask(self) -> Schedule | None:
        """A valid config that was never asked for before and is not known; None when there is none left."""
        if self.exhausted:
            return None
        while self._seeds:
            config = self._seeds.pop(0)
            if config not in self.taken:
                return self._take(config)
        self._proposals += 1
        if self._by_posterior and self._proposals % _TPE_EVERY:
            prospect = self._prospect
            if prospect is not None and prospect.config in self.taken:  # asked for since the last result
                prospect = self._posterior.prospect(self.taken)
            if prospect is not None:
                return self._take(prospect.config)
        for _ in range(len(self.candidates.ranking) if isinstance(self._sampler, RankingSampler) else 1):
            config = self._sampler.propose()
            if config not in self.taken:
                return self._take(config)
        return self._take(self._near(config))

    def tell(self, config: Schedule, seconds: float | None) -> None:
        """What became of a config: its time, or None where it failed."""
        self._learn(config, seconds)
        self._prospect = self._posterior.prospect(self.taken)
        little = self._prospect is not None and self._prospect.chance <= CHANCE and not self._seeds
        self._quiet = self._quiet + 1 if little else 0
        if seconds is not None:
            # Times that scatter seem to be such finds now and then, so that one does not undo all that was tried before it.
            self._fruitless = self._fruitless // 2 if seconds < self._best * (1 - GAIN) else self._fruitless + 1
            self._best = min(self._best, seconds)

    def _learn(self, config: Schedule, seconds: float | None) -> None:
        self.taken.add(config)
        if seconds is not None:
            self._posterior.learn(config, seconds)
        self._sampler.learn(config, seconds)

    def _take(self, config: Schedule) -> Schedule:
        self.taken.add(config)
        return config

    def _near(self, wanted: Schedule) -> Schedule:
        """The best-ranked unknown config that is one field away; else a random unknown one."""
        around = [c for c in self.candidates.space_of(wanted).neighbours(wanted) if c not in self.taken]
        if around:
            return min(around, key=lambda c: (self.candidates.estimate(c), self.candidates.order(c)))
        for _ in range(1000):
            config = _draw(self.candidates, self._source)
            if config not in self.taken:
                return config
        return next(c for space in self.candidates.spaces for c in space if c not in self.taken)


def _draw(candidates: Candidates, source: random.Random) -> Schedule:
    space = source.choices(candidates.spaces, [s.count for s in candidates.spaces])[0]
    return space.draw(source)
