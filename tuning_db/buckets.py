"""Buckets in the store: the configs that ranges of sizes were tuned to. One file with `store.py`, whose transactions it uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from kgen.dsl.errors import DatabaseError
from kgen.tuning_db import models as m
from kgen.tuning_db.records import BucketRecord, GpuFacts, ProblemKey, Toolchain
from kgen.tuning_db.rows import bucket, readable
from kgen.tuning_db.store import Store, _checked, _insert_trial, _preference


@dataclass(frozen=True)
class NewBucket:
    """What `set_buckets` stores: a trial of the config, and the rest as in a BucketRecord."""

    trial_id: int
    spans: Mapping[str, str]
    evidence: Mapping[str, Any]


def set_buckets(store: Store, found: Sequence[NewBucket], space: str = "") -> None:
    """Stores the buckets of one range, in place of those of the same class, GPU, toolchain and origin that lie within it."""

    def work(session: Session) -> None:
        rows = [_row(session, new, space) for new in found]
        records = [bucket(row) for row in rows]
        for row in session.scalars(_query(space=space)):
            # One that cannot be read is found by `check`, and never served.
            old = next(readable(bucket, [row]), None)
            if row not in rows and old is not None and _replaced(old, records):
                session.delete(row)

    store._write("store buckets in", work)
    store.refresh()


def buckets_of(
    store: Store, problem: ProblemKey, gpu: GpuFacts, toolchain: Toolchain | None = None, space: str = ""
) -> tuple[BucketRecord, ...]:
    """The buckets of a problem's class on a GPU, the preferred first: measured, verified, newer. Remembered for the class."""
    digest, form = problem.digest, problem.form

    def look_up() -> tuple[BucketRecord, ...]:
        query = _query(gpu, space).where(m.Problem.digest == digest)
        if toolchain is not None:
            query = query.where(m.ToolchainRow.nvrtc == toolchain.nvrtc, m.ToolchainRow.schema == toolchain.schema)
        records = store._read(lambda session: [*readable(bucket, session.scalars(query))])
        newest = [record for record in reversed(records) if record.problem.form == form]
        return tuple(sorted(newest, key=lambda record: _preference(record)[:2]))

    return store._remembered(("buckets", digest, form, gpu, toolchain, space), look_up)


def all_buckets(store: Store, gpu: GpuFacts, origin: str, operator: str | None = None) -> list[BucketRecord]:
    """Every bucket of one origin on a GPU that is of all configs, by operator and class: what a pack holds."""
    query = _query(gpu).where(m.Trial.origin == _checked(origin))
    if operator is not None:
        query = query.where(m.Problem.operator == operator)
    records = store._read(lambda session: [*readable(bucket, session.scalars(query))])
    return sorted(records, key=lambda r: (r.problem.operator, r.problem.form, [s.low for s in r.sizes.values()]))


def import_buckets(store: Store, gpu: GpuFacts, records: Iterable[BucketRecord]) -> int:
    """Stores buckets from elsewhere for this `gpu`, all or none, as unverified; returns how many were new."""
    given = list(records)

    def work(session: Session) -> int:
        known = [*readable(bucket, session.scalars(_query(gpu)))]
        new = [record for record in given if not any(_same(record, old) for old in known)]
        for record in new:
            trial = _insert_trial(session, gpu, record.toolchain, record.problem, record.trial, verified=False)
            _row(session, NewBucket(trial.id, record.spans, record.evidence), record.space)
        return len(new)

    stored = store._write("import buckets into", work)
    store.refresh()
    return stored


def _row(session: Session, new: NewBucket, space: str) -> m.Bucket:
    trial = session.get(m.Trial, new.trial_id)
    if trial is None:
        raise DatabaseError(f"no trial has the id {new.trial_id!r}; expected one that add_trial returned")
    now = datetime.now(timezone.utc)
    row = m.Bucket(trial=trial, space=space, spans=dict(new.spans), evidence=dict(new.evidence), updated_at=now)
    bucket(row)  # raises where it means nothing
    session.add(row)
    session.flush()
    return row


def _query(gpu: GpuFacts | None = None, space: str = "") -> Select[Any]:
    query = select(m.Bucket).join(m.Bucket.trial).join(m.Trial.problem).join(m.Trial.gpu).join(m.Trial.toolchain)
    query = query.where(m.Bucket.space == space).order_by(m.Bucket.id)
    return query if gpu is None else query.where(m.Gpu.key == gpu.key)


def _replaced(old: BucketRecord, new: Sequence[BucketRecord]) -> bool:
    """Whether a bucket lies within the range that new ones of its class make up."""
    rivals = [record for record in new if _class(record) == _class(old)]
    return bool(rivals) and all(
        min(r.sizes[name].low for r in rivals) <= span.low and span.high <= max(r.sizes[name].high for r in rivals)
        for name, span in old.sizes.items()
    )


def _class(record: BucketRecord) -> tuple[object, ...]:
    toolchain = (record.toolchain.nvrtc, record.toolchain.schema)
    return (record.problem.digest, record.problem.form, record.gpu, toolchain, record.origin)


def _same(one: BucketRecord, other: BucketRecord) -> bool:
    return (one.problem.digest, one.problem.form, one.toolchain, one.origin, one.spans) == (
        other.problem.digest, other.problem.form, other.toolchain, other.origin, other.spans
    )  # fmt: skip
