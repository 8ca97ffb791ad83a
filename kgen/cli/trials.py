"""Trials: measured times of configs by problem, from a tuning database or from a grid's file (benchmarks/grid.py)."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kgen.ops
from kgen.dsl.config_text import parse_config
from kgen.dsl.errors import ArgumentError, KgenError
from kgen.dsl.family import normalised, schedules
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.runtime.shipped import shipped
from kgen.tuner import records
from kgen.tuner.fit import Measurement

if TYPE_CHECKING:
    from kgen.tuning_db import GpuFacts, ProblemKey, Store

FORMAT, VERSION = "kgen-grid", 1
Times = tuple[NormalProblem, Mapping[Schedule, float]]


def by_model(found: Iterator[Times]) -> dict[type[Constants], list[Measurement]]:
    """The times of the configs of each model that a fit knows."""
    measured: dict[type[Constants], list[Measurement]] = defaultdict(list)
    for problem, times in found:
        for kind in {type(config).model for config in times} - {None}:
            own = {config: seconds for config, seconds in times.items() if type(config).model is kind}
            measured[kind].append(Measurement(problem, own))  # type: ignore[index]  # None is left out
    return dict(measured)


def of_grid(path: Path, gpu: str) -> Iterator[Times]:
    """What a file of a grid has, JSON or the same by gzip. ArgumentError where it is none, or another GPU's."""
    try:
        text = path.read_bytes()
        data = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {data['format']!r} version {data['version']!r}; expected {FORMAT!r} {VERSION}")
        made_on, entries = data["gpu"], [_entry(entry) for entry in data["problems"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"cannot read grid {path}: {type(error).__name__}: {error}") from error
    if made_on != gpu:
        raise ArgumentError(f"grid {path} was measured on {made_on}, not on {gpu}; name that with --gpu")
    yield from entries


def _entry(entry: Mapping[str, Any]) -> Times:
    problem = shipped(entry["operator"]).problem(entry["sizes"], dtype=entry["dtype"], layouts=entry["layouts"])
    return normalised(problem), {parse_config(t, schedules()): float(s) for t, s in entry["configs"].items()}


def of_database(store: Store, gpu: GpuFacts) -> Iterator[Times]:
    """What a database has of a GPU's measured trials, of shipped operators with dense operands."""
    graphs = {graph.digest: graph for operator in kgen.ops.operators().values() for graph in operator.graphs}
    for key in store.problems():
        problem = _problem(key, graphs)
        times = {} if problem is None else _times(store, key, gpu)
        if problem is not None and times:
            yield problem, times


def _times(store: Store, key: ProblemKey, gpu: GpuFacts) -> dict[Schedule, float]:
    found = {}
    for trial in store.trials(key, gpu, origin="measured"):
        config = records.read_config(trial.config)
        if config is not None and trial.status == "ok" and trial.seconds:
            found[config] = trial.seconds
    return found


def _problem(key: ProblemKey, graphs: Mapping[str, Any]) -> NormalProblem | None:
    """The problem of a key, where its operands are dense; None where it cannot be made from the key."""
    layouts = dict.fromkeys(re.findall(r"(\w+):\w+\[[^\]]*\]col", key.text), "col")
    try:
        found = normalised(Problem.dense(graphs[key.digest], key.sizes, layouts=layouts))
    except (KeyError, TypeError, KgenError):
        return None
    return found if records.problem_key(found) == key else None
