"""Buckets: what ranges of sizes were tuned to, for a problem of such a size: by one look-up of its class."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kgen.dsl.errors import KgenError
from kgen.dsl.family import normalised
from kgen.dsl.problem import NormalProblem, Problem, read_operand
from kgen.dsl.schedule import Schedule, source_of
from kgen.tuner import records
from kgen.tuning_db import MEASURED, BucketRecord, GpuFacts, ProblemKey, shipped_buckets

if TYPE_CHECKING:
    from kgen.tuning_db import Store


def found(
    problem: NormalProblem,
    key: ProblemKey,
    gpu: GpuFacts,
    store: Store | None,
    spaces: tuple[str, ...],
    whole_class: bool = False,
) -> Iterator[BucketRecord]:
    """The buckets that a problem is in, or those of its `whole_class`, whose kernels would be generated the same today.

    First those measured here, then those that come with kgen, then those modelled here; of these the ones of `spaces` in order.
    Those that were imported count once tuning has verified them on this machine.
    """
    mine: list[BucketRecord] = []
    if store is not None:
        from kgen.tuning_db import buckets_of  # here, as it loads SQLAlchemy

        for space in spaces:
            mine += [r for r in buckets_of(store, key, gpu, records.toolchain(), space) if r.trial.verified]
    measured = [record for record in mine if record.origin == MEASURED]
    for record in (*measured, *shipped(gpu).get((key.digest, key.form), ()), *mine):
        if (whole_class or record.serves(key.sizes)) and _is_current(record, problem):
            yield record


@functools.cache
def shipped(gpu: GpuFacts) -> Mapping[tuple[str, str], list[BucketRecord]]:
    """What comes with kgen, by the class of problems."""
    by_class: dict[tuple[str, str], list[BucketRecord]] = defaultdict(list)
    for record in shipped_buckets(gpu):
        by_class[record.problem.digest, record.problem.form].append(record)
    return by_class


#: Whether the kernels of buckets are what was timed at the problems of their trials, by what decides it.
_current: dict[tuple[str, ...], bool] = {}


def _is_current(record: BucketRecord, problem: NormalProblem) -> bool:
    """Whether the kernel of a bucket is still what was timed: that of this problem, or at the problem of its trial, whose sizes a
    source may hold."""
    config = records.read_config(record.trial.config)
    if config is None:
        return False
    if _digest(config, problem) == record.trial.source_digest:
        return True
    written = str(record.evidence.get("operands", ""))
    key = (record.problem.digest, record.problem.text, written, record.trial.config.text, record.trial.source_digest)
    if key not in _current:
        timed = _timed(problem, written, record.problem)
        _current[key] = bool(timed and _digest(config, timed) == record.trial.source_digest)
    return _current[key]


def _digest(config: Schedule, problem: NormalProblem) -> str | None:
    """The digest of a config's source; None where it is not valid any more."""
    try:
        return str(source_of(config, problem).digest) if config.applies(problem) else None
    except KgenError:
        return None


def _timed(problem: NormalProblem, written: str, key: ProblemKey) -> NormalProblem | None:
    """The problem whose operands are `written` so and that has this key, made of another of its class; None where it is none."""
    like, texts = (problem.origin or problem).operands, written.split()
    try:
        operands = [
            replace(read_operand(text), name=o.name, dtype=o.dtype, align=o.align) for o, text in zip(like, texts)
        ]
        made = normalised(Problem.bind(problem.graph, operands)) if len(texts) == len(like) else None
    except KgenError:
        return None
    return made if made and made.key == key.text else None
