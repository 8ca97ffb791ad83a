"""Result: what a benchmark found, as data that describes itself: times, intervals, ratios, and who took no part and why."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kgen.dsl.errors import ArgumentError

#: Raised with every change to the meaning or the names of the fields of the JSON.
SCHEMA = "kgen.bench/1"

#: Whose times the ratios compare with all others'.
SUBJECT = "kgen"

#: ok: right and timed. wrong: its values differ from the reference, so it was not timed. absent: not installed here.
#: declined: it does not compute this problem. failed: it raised. impossible: faster than the GPU's roofline.
Status = Literal["ok", "wrong", "absent", "declined", "failed", "impossible"]
STATUSES: tuple[Status, ...] = ("ok", "wrong", "absent", "declined", "failed", "impossible")


@dataclass(frozen=True)
class Time:
    """The median time of one call in seconds with its 95% interval, and the conditions of its samples.

    `flags` are those of the timer: "graph" (CUDA-graph replays were timed), "power_capped", "warm_l2", "thermal".
    `discarded` counts samples lost to thermal throttling. `clocks` has medians: sm_mhz, memory_mhz, power_w, temperature_c.
    """

    seconds: float
    lower: float
    upper: float
    samples: int
    flags: tuple[str, ...] = ()
    discarded: int = 0
    clocks: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ratio:
    """The opponent's time over kgen's: above 1, kgen is faster. The bounds are those of both intervals at their worst."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Participant:
    """One side of a comparison. `detail` is the config of kgen, or the reason of a status that is not ok.

    `error` is the largest error against the float64 reference over all operand sets, as a multiple of what is allowed.
    `alone` is the time with a kernel of another kind between any two calls, less that kernel's, where it was asked for.
    """

    name: str
    status: Status
    detail: str = ""
    time: Time | None = None
    error: float | None = None
    alone: Time | None = None


@dataclass(frozen=True)
class Comparison:
    """All participants on one problem, timed beside each other, over `operand_sets` sets of operands in turn.

    `arguments` are those of the command line for the problem. `telemetry` is the GPU's state before and after the timing.
    """

    problem: str
    key: str
    arguments: str
    bytes: int
    flops: int
    floor_seconds: float
    operand_sets: int
    scalars: Mapping[str, float]
    telemetry: Mapping[str, Any]
    participants: tuple[Participant, ...]

    def participant(self, name: str) -> Participant | None:
        """The participant with that name."""
        return next((p for p in self.participants if p.name == name), None)

    def time(self, name: str, alone: bool = False) -> Time | None:
        """The time of a participant, back to back or `alone`; None unless its status is ok and it was timed so."""
        found = self.participant(name)
        return (found.alone if alone else found.time) if found and found.status == "ok" else None

    def ratio(self, opponent: str, alone: bool = False) -> Ratio | None:
        """How many times kgen is faster than an opponent; None unless both were timed."""
        ours, theirs = self.time(SUBJECT, alone), self.time(opponent, alone)
        if ours is None or theirs is None:
            return None
        return Ratio(theirs.seconds / ours.seconds, theirs.lower / ours.upper, theirs.upper / ours.lower)

    def rate(self, name: str) -> float | None:
        """FLOP/s of a participant where the problem has contractions, else bytes/s."""
        time = self.time(name)
        return (self.flops or self.bytes) / time.seconds if time else None


@dataclass(frozen=True)
class Summary:
    """An opponent over all problems: the geometric mean of the ratios with its bounds, the worst, and how many count."""

    opponent: str
    mean: Ratio
    worst: float
    worst_problem: str
    problems: int


@dataclass(frozen=True)
class Result:
    """A benchmark of one operator. `environment` tells where and with what it ran, `settings` how it measured."""

    operator: str
    digest: str
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    comparisons: tuple[Comparison, ...]

    @property
    def opponents(self) -> tuple[str, ...]:
        """Names of all participants but kgen, in the order of their first appearance."""
        names = (p.name for c in self.comparisons for p in c.participants)
        return tuple(name for name in dict.fromkeys(names) if name != SUBJECT)

    def bandwidth(self, opponent: str) -> float | None:
        """The largest bandwidth of an opponent, such as `copy` or `read`, over all problems, in bytes/s."""
        times = [(c.bytes, c.time(opponent)) for c in self.comparisons]
        return max((moved / time.seconds for moved, time in times if time), default=None)

    def summaries(self, alone: bool = False) -> list[Summary]:
        """One for each opponent with a ratio, of times back to back or `alone`."""
        found = []
        for opponent in self.opponents:
            pairs = [(ratio, c.problem) for c in self.comparisons if (ratio := c.ratio(opponent, alone))]
            if pairs:
                worst, problem = min(pairs, key=lambda pair: pair[0].value)
                mean = Ratio(
                    *(geometric_mean(getattr(r, end) for r, _ in pairs) for end in ("value", "lower", "upper"))
                )
                found.append(Summary(opponent, mean, worst.value, problem, len(pairs)))
        return found

    def to_json(self) -> str:
        """The whole result as JSON, with its schema's name."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The result that `to_json` wrote. ArgumentError when the text is something else or of another schema."""
        try:
            data = json.loads(text)
            schema = data.pop("schema")
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ArgumentError(f"not a benchmark result: expected JSON with a schema, such as {SCHEMA!r}") from error
        if schema != SCHEMA:
            raise ArgumentError(f"a benchmark result of schema {schema!r}; this kgen reads {SCHEMA!r}")
        try:
            return cls(**{**data, "comparisons": tuple(map(_comparison, data["comparisons"]))})
        except (KeyError, TypeError) as error:
            raise ArgumentError(f"a benchmark result of schema {SCHEMA!r} with wrong fields: {error}") from error


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers, at least one."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def _comparison(data: dict[str, Any]) -> Comparison:
    return Comparison(**{**data, "participants": tuple(map(_participant, data["participants"]))})


def _participant(data: dict[str, Any]) -> Participant:
    if data["status"] not in STATUSES:
        raise TypeError(f"status {data['status']!r}")
    times = {name: data.get(name) for name in ("time", "alone")}
    return Participant(
        **{**data, **{name: t and Time(**{**t, "flags": tuple(t["flags"])}) for name, t in times.items()}}
    )
