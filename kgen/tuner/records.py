"""The tuner's values as the tuning database takes them, and back."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kgen.dsl.config_text import parse_config
from kgen.dsl.errors import KgenError
from kgen.dsl.family import family_of, schedules
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.target import Target
from kgen.dsl.version import VERSION
from kgen.gpu.toolchain import toolchain as nvrtc
from kgen.tuning_db import ConfigText, GpuFacts, ProblemKey, Toolchain

#: Raised when what a trial means changes: what is verified, how time is taken. What a config's kernel is, its source's digest
#: tells, which every trial carries.
MEANING = 1
SCHEMA = hashlib.sha256(f"kgen trial {MEANING}".encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=64)
def gpu_facts(target: Target) -> GpuFacts:
    """What of a target decides how fast a kernel runs."""
    watts = None if target.power_watts is None else round(target.power_watts)
    return GpuFacts(target.name, str(target.arch), target.sm_count, target.l2_bytes, watts, target.driver)


@functools.lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """The NVRTC and the kgen in use. ToolchainError where NVRTC is missing."""
    return Toolchain(nvrtc().version, VERSION, SCHEMA)


@functools.lru_cache(maxsize=64)
def problem_key(problem: NormalProblem) -> ProblemKey:
    """The identity of a problem in the database."""
    graph = problem.graph
    return ProblemKey(graph.name, graph.digest, problem.key, family_of(graph).name, problem.sizes)


def space_text(within: Sequence[SearchSpace] | None) -> str:
    """The spaces that were searched as they are stored: "" for all configs, else what they are, with a digest where long."""
    text = "; ".join(sorted(map(str, within or ())))
    return text if len(text) <= 1000 else f"{text[:900]}... {hashlib.sha256(text.encode()).hexdigest()}"


def config_text(config: Schedule) -> ConfigText:
    """A config as it is stored."""
    return ConfigText(type(config).__name__, config.version, repr(config), config.key)


def as_json(value: Any) -> Any:
    """What was seen, as JSON holds it whatever it is: NaN and infinities as text, and so what JSON has no form for."""
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def evidence_text(evidence: Mapping[str, object]) -> str:
    """What was seen of a kernel, in a line for a reader."""
    return ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in evidence.items()
    )


def read_config(stored: ConfigText, within: Sequence[SearchSpace] | None = None) -> Schedule | None:
    """The config that was stored, or None where it has another meaning now or none.

    Schedules of `within` come before others of their names, such as another file's.
    """
    try:
        named = {space.schedule.__name__: space.schedule for space in within or ()}
        schedule = {**schedules(stored.schedule), **named}.get(stored.schedule)
        return _read_config(stored, schedule)  # type: ignore[arg-type]  # mypy takes the hash of instances
    except KgenError:
        return None


@functools.lru_cache(maxsize=4096)
def _read_config(stored: ConfigText, schedule: type[Schedule] | None) -> Schedule | None:
    config = parse_config(stored.text, {} if schedule is None else {stored.schedule: schedule})
    return config if config.version == stored.version and config.key == stored.key else None
