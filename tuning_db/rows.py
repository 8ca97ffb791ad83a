"""Rows of the database as records. A row that does not hold what it should makes none: DatabaseError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, TypeVar

from kgen.dsl.errors import DatabaseError
from kgen.tuning_db import models as m
from kgen.tuning_db.records import (
    BestRecord,
    BucketRecord,
    ConfigText,
    DeferredRecord,
    GpuFacts,
    ProblemKey,
    Toolchain,
    TrialRecord,
)

_T = TypeVar("_T")

PLAIN = tuple(entry.name for entry in fields(TrialRecord) if entry.name not in ("config", "id"))
"""The columns of a trial that its record holds under the same name."""


def readable(make: Callable[[Any], _T], rows: Iterable[Any]) -> Iterator[_T]:
    """The records of the rows that hold what they should."""
    for row in rows:
        with contextlib.suppress(DatabaseError):
            yield make(row)


def gpu(row: m.Gpu) -> GpuFacts:
    return GpuFacts(row.name, row.arch, row.sm_count, row.l2_bytes, row.power_limit, row.driver)


def problem(row: m.Problem) -> ProblemKey:
    return ProblemKey(row.operator, row.digest, row.text, row.family, row.sizes)


def config(row: m.Config) -> ConfigText:
    return ConfigText(row.schedule, row.version, row.text, row.digest)


def toolchain(row: m.ToolchainRow) -> Toolchain:
    return Toolchain(row.nvrtc, row.kgen, row.schema)


def trial(row: m.Trial) -> TrialRecord:
    return TrialRecord(config(row.config), id=row.id, **{name: getattr(row, name) for name in PLAIN})


def key_of(row: m.Trial) -> tuple[ProblemKey, GpuFacts, Toolchain]:
    return problem(row.problem), gpu(row.gpu), toolchain(row.toolchain)


def best(row: m.Best) -> BestRecord:
    return BestRecord(*key_of(row.trial), trial(row.trial), row.comparison, row.space)


def bucket(row: m.Bucket) -> BucketRecord:
    return BucketRecord(*key_of(row.trial), trial(row.trial), row.spans, row.evidence, row.space)


def deferred(row: m.Deferred) -> DeferredRecord:
    return DeferredRecord(problem(row.problem), gpu(row.gpu), row.place, row.id)
