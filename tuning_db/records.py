"""The frozen values that go into and come out of the tuning database.

Each checks itself when it is made, so that neither a caller's slip nor an imported pack can store what the database
has no meaning for. A time is either measured (`seconds` with its interval) or modelled (`modelled_seconds`); no
record holds both.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from datetime import datetime
from typing import Any

from kgen.dsl.config_text import parse_fields
from kgen.dsl.errors import ArgumentError, ConfigError, DatabaseError
from kgen.dsl.span import Span

MEASURED = "measured"
MODELLED = "modelled"
ORIGINS = (MEASURED, MODELLED)
STATUSES = ("ok", "compile_error", "rejected", "wrong", "crashed", "timeout")

_NAME = r"[A-Za-z_][A-Za-z0-9_.]{0,199}"
_DIGEST = r"[0-9a-f]{8,64}"


def _require(condition: bool, what: str, got: object, expected: str) -> None:
    if not condition:
        raise DatabaseError(f"{what} is {repr(got)[:300]}; expected {expected}")


def _match(pattern: str, what: str, got: object, expected: str) -> None:
    _require(isinstance(got, str) and re.fullmatch(pattern, got) is not None, what, got, expected)


def _text(what: str, got: object, limit: int = 100_000) -> None:
    _require(isinstance(got, str) and 0 < len(got) <= limit, what, got, f"a text of 1 to {limit} characters")


def _count(what: str, got: object, least: int, most: int = 2**62) -> None:
    valid = isinstance(got, int) and not isinstance(got, bool) and least <= got <= most
    _require(valid, what, got, f"an integer from {least} to {most}")


def _positive(what: str, got: object) -> None:
    valid = isinstance(got, (int, float)) and not isinstance(got, bool) and 0 < got < 1e9
    _require(valid, what, got, "a number of seconds above 0 and below 1e9")


def _space(got: object) -> None:
    _require(isinstance(got, str) and len(got) <= 1000, "space", got, "at most 1000 characters")


def _json(what: str, got: object) -> None:
    try:
        valid = isinstance(got, Mapping) and json.loads(json.dumps(dict(got), allow_nan=False)) == got
    except (TypeError, ValueError, RecursionError):
        valid = False
    _require(valid, what, got, "a mapping that JSON holds unchanged (text keys; no NaN, infinity or tuple)")


#: What of a comparison is read again, with the type it must have where it is there.
_COMPARISON = {
    "search": Mapping, "provisional": bool, "beats_default": bool, "beats_opponent": bool,
    "speedup_over_default": float, "speedup_over_opponent": float,
}  # fmt: skip
_BUCKET = {"operands": str, "regret": float, "checked": int, "p95": float, "worst": float}
_SEARCH = {"seconds": float, "trials": int, "space": int, "exhausted": bool}


def _comparison(got: object) -> None:
    _json("comparison", got)
    assert isinstance(got, Mapping)
    _typed("comparison", got, _COMPARISON)
    _typed("comparison's search", got.get("search", {}), _SEARCH)


def _typed(what: str, got: Mapping[str, Any], types: Mapping[str, type]) -> None:
    for name in types.keys() & got.keys():
        value, kind = got[name], types[name]
        if kind in (int, float):
            valid = isinstance(value, (int, kind)) and not isinstance(value, bool) and 0 <= value < 2**53
        else:
            valid = isinstance(value, kind)
        _require(valid, f"{what}: {name}", value, "an object" if kind is Mapping else f"a {kind.__name__}")


def _hash(values: Iterable[object]) -> str:
    return hashlib.sha256(json.dumps(list(values)).encode()).hexdigest()


@dataclass(frozen=True)
class GpuFacts:
    """What of a GPU decides how fast a kernel runs. `l2_bytes` in bytes, `power_limit` in watts.

    Two GPUs share tuned results only when all of it is equal. `power_limit` and `driver` are None for a GPU known
    only from a table.
    """

    name: str
    arch: str
    sm_count: int
    l2_bytes: int
    power_limit: int | None = None
    driver: str | None = None

    def __post_init__(self) -> None:
        _text("GPU name", self.name, 200)
        _match(r"sm_\d{2,3}[a-z]?", "GPU architecture", self.arch, "for example 'sm_80' or 'sm_90a'")
        _count("number of SMs", self.sm_count, 1, 100_000)
        _count("size of the L2 cache in bytes", self.l2_bytes, 0)
        if self.power_limit is not None:
            _count("power limit in watts", self.power_limit, 1, 1_000_000)
        if self.driver is not None:
            _text("driver version", self.driver, 100)

    @property
    def key(self) -> str:
        """The identity of this value in the database."""
        return _hash(astuple(self))

    def same_card(self, other: GpuFacts) -> bool:
        """Whether both are the same model of card, power limit and driver aside."""
        return astuple(self)[:4] == astuple(other)[:4]


@dataclass(frozen=True)
class Toolchain:
    """What turns a config into a binary: the versions of NVRTC and kgen, and the digest of its generator."""

    nvrtc: str
    kgen: str
    schema: str

    def __post_init__(self) -> None:
        _text("NVRTC version", self.nvrtc, 100)
        _text("kgen version", self.kgen, 100)
        _match(_DIGEST, "schema digest", self.schema, "8 to 64 hexadecimal digits")

    @property
    def key(self) -> str:
        """The identity of this value in the database."""
        return _hash(astuple(self))


@dataclass(frozen=True)
class ProblemKey:
    """What is tuned: an operator and everything of a call that its kernel may depend on.

    `digest` is that of the operator's graph, `text` the rest (shapes, dtypes, layouts, alignment) in one canonical
    line. These two are the identity. `sizes` are the named sizes, by which `nearest` finds similar problems.
    """

    operator: str
    digest: str
    text: str
    family: str
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _match(_NAME, "operator", self.operator, "an identifier")
        _match(_DIGEST, "operator digest", self.digest, "8 to 64 hexadecimal digits")
        _text("problem text", self.text)
        _match(_NAME, "family", self.family, "an identifier")
        _require(isinstance(self.sizes, Mapping), "sizes", self.sizes, "a mapping of names to integers")
        for name, size in self.sizes.items():
            _match(_NAME, "name of a size", name, "an identifier")
            _count(f"size {name}", size, 0)

    @property
    def key(self) -> str:
        """The identity of this value in the database."""
        return _hash((self.digest, self.text))

    @property
    def form(self) -> str:
        """The text without the shapes: what problems have in common that differ in sizes alone."""
        return re.sub(r"\[[^\]]*\]", "[]", self.text)


@dataclass(frozen=True)
class ConfigText:
    """A config as printed: data, never evaluated. `key` is the config's own stable hash, `version` its schedule's.

    The first three are the identity in the database, so that a pack with a false `key` cannot take another config's
    place.
    """

    schedule: str
    version: int
    text: str
    key: str

    def __post_init__(self) -> None:
        _match(_NAME, "schedule", self.schedule, "an identifier")
        _count("version of the schedule", self.version, 0, 2**31 - 1)
        _text("config", self.text)
        try:
            name, _ = parse_fields(self.text)
        except ConfigError as error:
            raise DatabaseError(str(error)) from error
        _require(name == self.schedule, "schedule of the config", name, f"{self.schedule!r}, as it says beside it")
        _match(_DIGEST, "config key", self.key, "8 to 64 hexadecimal digits")

    @property
    def identity(self) -> str:
        """The identity of this value in the database."""
        return _hash((self.schedule, self.version, self.text))


@dataclass(frozen=True)
class TrialRecord:
    """What became of one config. Times in seconds, `spills` and `shared` in bytes, `created_at` in UTC.

    Measured and ok: `seconds` is the median, `lower` and `upper` its 95% interval over `samples`. Modelled and ok:
    `modelled_seconds` alone. A trial that is not ok has no time; its `evidence` says what happened. `policy` names
    the way of measuring. `verified` is False for a trial that came from a pack and was not yet checked here. `id`
    and `created_at` are filled in by the store.
    """

    config: ConfigText
    status: str
    origin: str
    source_digest: str = ""
    seconds: float | None = None
    lower: float | None = None
    upper: float | None = None
    samples: int | None = None
    modelled_seconds: float | None = None
    registers: int | None = None
    spills: int | None = None
    shared: int | None = None
    policy: str = ""
    clocks: Mapping[str, Any] = field(default_factory=dict, hash=False)
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)
    verified: bool = True
    created_at: datetime | None = None
    id: int | None = None

    def __post_init__(self) -> None:
        _require(isinstance(self.config, ConfigText), "config of a trial", self.config, "a ConfigText")
        _require(self.status in STATUSES, "status of a trial", self.status, f"one of {', '.join(STATUSES)}")
        _require(self.origin in ORIGINS, "origin of a trial", self.origin, f"one of {', '.join(ORIGINS)}")
        _require(isinstance(self.policy, str) and len(self.policy) <= 200, "policy", self.policy, "a short text")
        _require(isinstance(self.verified, bool), "verified", self.verified, "True or False")
        if self.source_digest != "":
            _match(_DIGEST, "source digest", self.source_digest, "8 to 64 hexadecimal digits")
        for name in ("registers", "spills", "shared"):
            if getattr(self, name) is not None:
                _count(name, getattr(self, name), 0, 2**31 - 1)
        _json("clocks", self.clocks)
        _json("evidence", self.evidence)
        if self.created_at is not None:
            when = self.created_at
            valid = isinstance(when, datetime) and when.utcoffset() is not None and 2000 <= when.year < 9999
            _require(valid, "created_at", when, "a datetime of this age with its time zone")
        self._check_times()

    def _check_times(self) -> None:
        measured = {name: getattr(self, name) for name in ("seconds", "lower", "upper", "samples")}
        ok = self.status == "ok"
        if ok and self.origin == MEASURED:
            for name in ("seconds", "lower", "upper"):
                _positive(f"{name} of a measured trial", measured[name])
            _count("samples of a measured trial", self.samples, 1, 2**31 - 1)
            ordered = measured["lower"] <= measured["seconds"] <= measured["upper"]
            _require(ordered, "interval of a measured trial", measured, "lower <= seconds <= upper")
        else:
            what = f"measured time of a {self.origin} trial with status {self.status}"
            _require(all(value is None for value in measured.values()), what, measured, "none")
        if ok and self.origin == MODELLED:
            _positive("modelled_seconds of a modelled trial", self.modelled_seconds)
        else:
            what = f"modelled_seconds of a {self.origin} trial with status {self.status}"
            _require(self.modelled_seconds is None, what, self.modelled_seconds, "none")


@dataclass(frozen=True)
class BestRecord:
    """The winner of a problem on a GPU, and what it was compared with (the default config, the opponent).

    `space` names the configs that it is the best of, where these were not all: as kgen.dsl.schedule.SearchSpace prints them.
    """

    problem: ProblemKey
    gpu: GpuFacts
    toolchain: Toolchain
    trial: TrialRecord
    comparison: Mapping[str, Any] = field(default_factory=dict, hash=False)
    space: str = ""

    def __post_init__(self) -> None:
        _space(self.space)
        _require(self.trial.status == "ok", "status of a best trial", self.trial.status, "ok")
        _comparison(self.comparison)

    @property
    def origin(self) -> str:
        """`measured` or `modelled`."""
        return self.trial.origin


@dataclass(frozen=True)
class DeferredRecord:
    """A problem to tune on a GPU when there is time. `place`: a shipped operator's name, or `file.py:name`."""

    problem: ProblemKey
    gpu: GpuFacts
    place: str
    id: int

    def __post_init__(self) -> None:
        _text("place", self.place, 5000)


@dataclass(frozen=True)
class BucketRecord:
    """A config for all sizes of a box, found by `kgen tune` of a range. `trial` is its own at `problem`, one of that range.

    It is of the class of that problem: the same operator and `form`. `spans` are the sizes by name, as kgen.dsl.span.Span prints
    them. `evidence` has the operands of that problem as the caller put it, the regret at timed sizes, and how the range was
    checked. `space` is as for a BestRecord.
    """

    problem: ProblemKey
    gpu: GpuFacts
    toolchain: Toolchain
    trial: TrialRecord
    spans: Mapping[str, str] = field(hash=False)
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)
    space: str = ""

    def __post_init__(self) -> None:
        _space(self.space)
        _require(self.trial.status == "ok", "status of a bucket's trial", self.trial.status, "ok")
        _json("evidence of a bucket", self.evidence)
        _typed("evidence of a bucket", self.evidence, _BUCKET)
        _json("spans of a bucket", self.spans)
        names = sorted(self.problem.sizes)
        _require(sorted(self.spans) == names, "names of the spans", sorted(self.spans), f"those of the sizes, {names}")
        for name, text in self.spans.items():
            _text(f"span of {name}", text, 10_000)
            try:
                Span.parse(text)
            except ArgumentError as error:
                raise DatabaseError(f"span of {name}: {error}") from error

    @property
    def origin(self) -> str:
        """`measured` or `modelled`."""
        return self.trial.origin

    @functools.cached_property
    def sizes(self) -> Mapping[str, Span]:
        """The sizes that it serves, by name."""
        return {name: Span.parse(text) for name, text in self.spans.items()}

    @functools.cached_property
    def _widest_first(self) -> tuple[tuple[str, int, int, Span], ...]:
        """Of each size its name, the least and the most that is served, and the span: first what leaves out most others."""
        found = ((name, span.low, span.high, span) for name, span in self.sizes.items())
        return tuple(sorted(found, key=lambda one: one[1] - one[2]))

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is for these sizes, by name, of its class. Asked of each bucket of a class, by every first call."""
        for name, low, high, span in self._widest_first:
            size = sizes.get(name)
            if size is None or not low <= size <= high or size not in span:
                return False
        return True


@dataclass(frozen=True)
class Statistics:
    """How much the database holds. `trials` counts by origin, then by status; `operators` counts trials by operator."""

    url: str
    revision: str
    gpus: tuple[GpuFacts, ...]
    problems: int
    configs: int
    best: int
    trials: Mapping[str, Mapping[str, int]]
    operators: Mapping[str, int]


def nearest(candidates: Iterable[BestRecord], sizes: Mapping[str, int]) -> list[BestRecord]:
    """The candidates whose problems name the same sizes, the most similar shape first.

    Equal distances are ordered measured before modelled, then by the problem's text, so that every process picks the same.
    """
    same = [record for record in candidates if record.problem.sizes.keys() == sizes.keys()]
    return sorted(same, key=lambda record: (distance(record.problem.sizes, sizes), record.origin, record.problem.text))


def distance(tuned: Mapping[str, int], sizes: Mapping[str, int]) -> float:
    """How far one shape is from another of the same names: the product of the ratios of their sizes, 1.0 where they are equal.

    Its logarithm is the sum of |log(a / b)|: a tile's fit depends on ratios. Made of divisions and products of doubles alone,
    in the order of the names, so that C++ that does the same has the same value to the last bit.
    """
    found = 1.0
    for name in sorted(tuned):
        a, b = float(max(tuned[name], 1)), float(max(sizes[name], 1))
        found *= max(a, b) / min(a, b)
    return found
