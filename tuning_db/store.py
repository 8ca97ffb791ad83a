"""The store: the one way into the tuning database. Values of `records` go in and come out; no row object leaks.

Every write is one transaction, committed before the call returns. `best` and `best_of_operator` remember their
answers, so that a warm call runs no SQL; what this store writes makes it forget them, what another process writes
is seen after `refresh`. A stored row that does not hold what it should, by damage or from elsewhere, counts as not there;
`check` names it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Engine, Select, SingletonThreadPool, delete, func, select
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session

from kgen.dsl.errors import DatabaseError
from kgen.tuning_db import engine as engines
from kgen.tuning_db import models as m
from kgen.tuning_db import rows
from kgen.tuning_db.records import (
    MEASURED,
    ORIGINS,
    BestRecord,
    BucketRecord,
    DeferredRecord,
    GpuFacts,
    ProblemKey,
    Statistics,
    Toolchain,
    TrialRecord,
)

_T = TypeVar("_T")
_Row = TypeVar("_Row", bound=m.Keyed)

#: Seconds between the attempts at what a database server did not take: it may be restarting. A write has cost the time of
#: a trial and is worth half a minute; a read may be holding up a call, and has the first of them.
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
READ_PAUSES = 3


def open_store(url: str | os.PathLike[str], readonly: bool = False) -> Store:
    """Opens a tuning database, creating or migrating it as needed; with `readonly`, one that is there and need not be writable.

    `url` is a path (SQLite) or any SQLAlchemy URL. Raises DatabaseError when it is malformed, unwritable, corrupt, not
    kgen's, or written by a newer kgen, and with `readonly` when there is none; nothing is written then.
    """
    parsed = engines.parse_url(url)
    return Store(engines.open_engine(parsed, readonly), engines.shown(parsed))


class Store:
    """An open tuning database. Threads and forked processes may share one. Made by `open_store`."""

    def __init__(self, engine: Engine, where: str) -> None:
        self.engine = engine
        self.where = where
        self._writer = engines.writing(engine)
        self._lock = threading.Lock()
        self._generation = 0
        self._known: dict[tuple[object, ...], Any] = {}
        #: A file is there or not; a server may come back.
        self._pauses = PAUSES if engine.dialect.name != "sqlite" else ()
        _stores.add(self)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives its connections back."""
        self.engine.dispose()

    # Writing.

    def add_trial(self, gpu: GpuFacts, toolchain: Toolchain, problem: ProblemKey, trial: TrialRecord) -> int:
        """Stores a finished trial and returns its id. It is on disk when this returns."""
        row = self._write("store a trial in", lambda s: _insert_trial(s, gpu, toolchain, problem, trial))
        return int(row.id)

    def set_best(self, trial_id: int, comparison: Mapping[str, Any] | None = None, space: str = "") -> None:
        """Makes a trial the best of its own problem, GPU, toolchain and origin, in place of the one before.

        `comparison` is what it was measured against (JSON data): the default config, the opponent. `space` names the
        configs that were searched where these were not all; each has a best of its own.
        """

        def work(session: Session) -> None:
            trial = session.get(m.Trial, trial_id)
            if trial is None:
                raise DatabaseError(f"no trial has the id {trial_id!r}; expected one that add_trial returned")
            _insert_best(session, trial, BestRecord(*rows.key_of(trial), rows.trial(trial), comparison or {}, space))

        self._write("store the best config in", work)
        self.refresh()

    def import_best(self, gpu: GpuFacts, records: Iterable[BestRecord]) -> int:
        """Stores records from elsewhere for this `gpu`, all or none; returns how many were new.

        They count as unverified. A best already stored for the same problem, toolchain and origin is kept instead.
        """
        given = list(records)

        def work(session: Session) -> int:
            stored = 0
            for record in given:
                query = _best_query(
                    gpu, record.origin, record.space, m.Problem.key == record.problem.key, record.toolchain
                )
                if not list(rows.readable(rows.best, session.scalars(query))):
                    trial = _insert_trial(session, gpu, record.toolchain, record.problem, record.trial, verified=False)
                    _insert_best(session, trial, record)
                    stored += 1
            return stored

        stored = self._write("import tuned configs into", work)
        self.refresh()
        return stored

    def mark_verified(self, trial_id: int) -> None:
        """Notes that an imported trial's config proved correct here."""

        def work(session: Session) -> None:
            trial = session.get(m.Trial, trial_id)
            if trial is None:
                raise DatabaseError(f"no trial has the id {trial_id!r}; expected the id of a stored TrialRecord")
            trial.verified = True

        self._write("update", work)
        self.refresh()

    def unset_best(self, trial_id: int) -> None:
        """Takes back `set_best`, for example when a config proves wrong later. The trial itself is kept."""
        self._write("update", lambda session: session.execute(delete(m.Best).where(m.Best.trial_id == trial_id)))
        self.refresh()

    def defer(self, problem: ProblemKey, gpu: GpuFacts, place: str) -> None:
        """Notes a problem for tuning later, once; `place` says where its operator is."""
        DeferredRecord(problem, gpu, place, 0)

        def work(session: Session) -> None:
            held = _shared_problem(session, problem), _shared_gpu(session, gpu)
            if not session.scalars(select(m.Deferred).filter_by(problem=held[0], gpu=held[1])).first():
                now = datetime.now(timezone.utc)
                session.add(m.Deferred(problem=held[0], gpu=held[1], place=place, created_at=now))

        self._write("note a deferred problem in", work)

    def settle(self, deferred_id: int) -> None:
        """Takes a deferred problem off: it was tuned, or is wanted no more."""
        self._write("update", lambda session: session.execute(delete(m.Deferred).where(m.Deferred.id == deferred_id)))

    def remove(self, *, gpu: str | None = None, operator: str | None = None) -> int:
        """Deletes the trials, and with them the bests and buckets, of a GPU and/or an operator, by name; returns how many."""
        if gpu is None and operator is None:
            raise DatabaseError("nothing named to remove; expected a GPU's name, an operator's name, or both")
        doomed = select(m.Trial.id)
        if gpu is not None:
            doomed = doomed.where(m.Trial.gpu_id.in_(select(m.Gpu.id).where(m.Gpu.name == gpu)))
        if operator is not None:
            doomed = doomed.where(m.Trial.problem_id.in_(select(m.Problem.id).where(m.Problem.operator == operator)))

        def work(session: Session) -> int:
            count = session.scalar(select(func.count()).select_from(doomed.subquery())) or 0
            for kind in (m.Best, m.Bucket):
                session.execute(delete(kind).where(kind.trial_id.in_(doomed)))
            session.execute(delete(m.Trial).where(m.Trial.id.in_(doomed)))
            return count

        count = self._write("remove trials from", work)
        self.refresh()
        return count

    # Reading.

    def trials(
        self, problem: ProblemKey, gpu: GpuFacts, toolchain: Toolchain | None = None, origin: str | None = None
    ) -> list[TrialRecord]:
        """The trials of a problem on a GPU, oldest first; of one toolchain or origin when given."""
        query = select(m.Trial).join(m.Trial.problem).join(m.Trial.gpu).join(m.Trial.toolchain)
        query = query.where(m.Problem.key == problem.key, m.Gpu.key == gpu.key).order_by(m.Trial.id)
        if toolchain is not None:
            query = query.where(m.ToolchainRow.key == toolchain.key)
        if origin is not None:
            query = query.where(m.Trial.origin == _checked(origin))
        return self._read(lambda session: list(rows.readable(rows.trial, session.scalars(query))))

    def best(
        self,
        problem: ProblemKey,
        gpu: GpuFacts,
        origin: str | None = None,
        toolchain: Toolchain | None = None,
        space: str = "",
    ) -> BestRecord | None:
        """The best config known for a problem on a GPU, or None; of a `space` alone where it is named.

        Measured comes before modelled, verified before unverified, newer before older. `toolchain` admits only
        results of the same NVRTC and the same schema; kgen's own version number may differ. What is known of an operator is
        read when it is asked for first, and remembered: another problem of it runs no SQL.
        """
        return self._bests(problem.digest, gpu, origin, toolchain, space).get(problem.key)

    def best_of_operator(
        self,
        digest: str,
        gpu: GpuFacts,
        origin: str | None = None,
        toolchain: Toolchain | None = None,
        space: str = "",
    ) -> list[BestRecord]:
        """The `best` of every problem of the operator with this digest on a GPU, for `nearest`."""
        return [*self._bests(digest, gpu, origin, toolchain, space).values()]

    def _bests(
        self, digest: str, gpu: GpuFacts, origin: str | None, toolchain: Toolchain | None, space: str
    ) -> Mapping[str, BestRecord]:
        """The `best` of every problem of an operator, by the problem's key."""

        def look_up() -> dict[str, BestRecord]:
            query = _best_query(gpu, origin, space, m.Problem.digest == digest, toolchain).order_by(m.Best.id)
            found: dict[str, list[BestRecord]] = defaultdict(list)
            for record in self._read(lambda session: list(rows.readable(rows.best, session.scalars(query)))):
                found[record.problem.key].append(record)
            return {key: min(records, key=_preference) for key, records in found.items()}

        return self._remembered(("bests", digest, gpu, origin, toolchain, space), look_up)

    def all_best(
        self, gpu: GpuFacts, origin: str, operator: str | None = None, space: str | None = ""
    ) -> list[BestRecord]:
        """Every best of one origin on a GPU, by operator and problem: of all configs, what a pack holds; None: of every space."""
        query = _best_query(gpu, origin, space, None if operator is None else m.Problem.operator == operator)
        query = query.order_by(m.Problem.operator, m.Problem.text, m.Best.id)
        return self._read(lambda session: list(rows.readable(rows.best, session.scalars(query))))

    def problems(self) -> list[ProblemKey]:
        """The problems with at least one trial, by operator and text."""
        query = select(m.Problem).where(m.Problem.id.in_(select(m.Trial.problem_id)))
        query = query.order_by(m.Problem.operator, m.Problem.text)
        return self._read(lambda session: list(rows.readable(rows.problem, session.scalars(query))))

    def deferred(self) -> list[DeferredRecord]:
        """The problems that wait for tuning, the first noted first."""
        query = select(m.Deferred).order_by(m.Deferred.id)
        return self._read(lambda session: list(rows.readable(rows.deferred, session.scalars(query))))

    def statistics(self) -> Statistics:
        """How much the database holds."""

        def work(session: Session) -> Statistics:
            trials: dict[str, dict[str, int]] = {origin: {} for origin in ORIGINS}
            grouped = select(m.Trial.origin, m.Trial.status, func.count()).group_by(m.Trial.origin, m.Trial.status)
            for origin, status, number in session.execute(grouped):
                trials.setdefault(str(origin), {})[str(status)] = number
            named = select(m.Problem.operator, func.count()).join(m.Trial, m.Trial.problem_id == m.Problem.id)
            named = named.group_by(m.Problem.operator).order_by(m.Problem.operator)
            return Statistics(
                url=self.where,
                revision=engines.revision_of(session.connection()) or "",
                gpus=tuple(rows.readable(rows.gpu, session.scalars(select(m.Gpu).order_by(m.Gpu.id)))),
                problems=session.scalar(select(func.count(m.Trial.problem_id.distinct()))) or 0,
                configs=session.scalar(select(func.count(m.Config.id))) or 0,
                best=session.scalar(select(func.count(m.Best.id))) or 0,
                trials=trials,
                operators={str(row[0]): row[1] for row in session.execute(named)},
            )

        return self._read(work)

    def check(self) -> list[str]:
        """What is wrong with the database, one line each; empty when it is sound. Reads all of it, changes nothing."""
        strayed = select(m.Best.id).join(m.Trial, m.Best.trial_id == m.Trial.id)
        strayed = strayed.where(
            (m.Best.problem_id != m.Trial.problem_id)
            | (m.Best.gpu_id != m.Trial.gpu_id)
            | (m.Best.toolchain_id != m.Trial.toolchain_id)
            | (m.Best.origin != m.Trial.origin)
            | (m.Trial.status != "ok")
        )

        def work(session: Session) -> list[str]:
            found: list[str] = engines.integrity(session.connection())
            found += [f"best {row} does not match its trial" for row in session.scalars(strayed)]
            made: list[tuple[type[m.Base], Callable[[Any], object]]]
            made = [
                (m.Gpu, rows.gpu),
                (m.Problem, rows.problem),
                (m.Trial, rows.trial),
                (m.Best, rows.best),
                (m.Bucket, rows.bucket),
                (m.Deferred, rows.deferred),
            ]
            for kind, make in made:
                for row in session.scalars(select(kind).execution_options(yield_per=500)):
                    try:
                        make(row)
                    except DatabaseError as error:
                        found.append(f"row {row.id} of {kind.__tablename__}: {error}")
            return found

        try:
            return self._read(work)
        except DatabaseError as error:
            return [str(error)]

    def refresh(self) -> None:
        """Forgets remembered answers, so that what other processes wrote is seen."""
        with self._lock:
            self._generation += 1
            self._known.clear()

    # Transactions and memory.

    def _write(self, action: str, work: Callable[[Session], _T]) -> _T:
        with engines.explained(f"{action} the tuning database", self.where):
            return self._transact(self._writer, work, self._pauses)

    def _read(self, work: Callable[[Session], _T]) -> _T:
        with engines.explained("read the tuning database", self.where):
            return self._transact(self.engine, work, self._pauses[:READ_PAUSES])

    def _transact(self, engine: Engine, work: Callable[[Session], _T], pauses: tuple[float, ...]) -> _T:
        """What `work` returns, in one transaction, committed at the end; all of it anew where that may help.

        It may where another writer has just made a row that this one makes too, and where a server went away.
        """
        for pause in (*pauses, None):
            try:
                with Session(engine, expire_on_commit=False) as session, session.begin():
                    return work(session)
            except IntegrityError:
                if pause is None:
                    raise
            except DBAPIError as error:
                if pause is None or not (isinstance(error, OperationalError) or error.connection_invalidated):
                    raise
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _remembered(self, key: tuple[object, ...], look_up: Callable[[], _T]) -> _T:
        known: _T
        try:
            known = self._known[key]
            return known
        except KeyError:
            pass
        generation = self._generation
        answer = look_up()
        with self._lock:
            if generation == self._generation:  # else a write overtook this look-up
                self._known[key] = answer
        return answer


#: All that are open, for a fork: the child has connections of its own, and no lock that another thread held.
_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    for store in _stores:
        store._lock = threading.Lock()
        if not isinstance(store.engine.pool, SingletonThreadPool):  # that is a database in memory, which is copied
            store.engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _checked(origin: str) -> str:
    if origin not in ORIGINS:
        raise DatabaseError(f"origin is {origin!r}; expected one of {', '.join(ORIGINS)}")
    return origin


def _best_query(
    gpu: GpuFacts, origin: str | None, space: str | None, *conditions: ColumnElement[bool] | Toolchain | None
) -> Select[Any]:
    query = select(m.Best).join(m.Problem, m.Best.problem_id == m.Problem.id).join(m.Gpu, m.Best.gpu_id == m.Gpu.id)
    query = query.where(m.Gpu.key == gpu.key)
    if space is not None:
        query = query.where(m.Best.space == space)
    if origin is not None:
        query = query.where(m.Best.origin == _checked(origin))
    for condition in conditions:
        if isinstance(condition, Toolchain):
            query = query.join(m.ToolchainRow, m.Best.toolchain_id == m.ToolchainRow.id)
            query = query.where(m.ToolchainRow.nvrtc == condition.nvrtc, m.ToolchainRow.schema == condition.schema)
        elif condition is not None:
            query = query.where(condition)
    return query


def _preference(record: BestRecord | BucketRecord) -> tuple[bool, bool, int]:
    return record.origin != MEASURED, not record.trial.verified, -(record.trial.id or 0)


def _shared(session: Session, kind: type[_Row], make: Callable[[_Row], object], key: str, **values: Any) -> _Row:
    """The row with this key, made when there is none and mended where its record cannot be made of it.

    IntegrityError where another writer makes it at the same moment.
    """
    query = select(kind).where(kind.key == key)
    found = session.scalars(query).first()
    row: _Row = kind(key=key, **values) if found is None else found
    if found is None:
        session.add(row)
        session.flush()
    elif not list(rows.readable(make, [row])):
        for name, value in values.items():
            setattr(row, name, value)
    return row


def _shared_gpu(session: Session, gpu: GpuFacts) -> m.Gpu:
    return _shared(session, m.Gpu, rows.gpu, gpu.key, **vars(gpu))


def _shared_problem(session: Session, problem: ProblemKey) -> m.Problem:
    return _shared(session, m.Problem, rows.problem, problem.key, **{**vars(problem), "sizes": dict(problem.sizes)})


def _insert_trial(
    session: Session,
    gpu: GpuFacts,
    toolchain: Toolchain,
    problem: ProblemKey,
    trial: TrialRecord,
    verified: bool | None = None,
) -> m.Trial:
    values = {name: getattr(trial, name) for name in rows.PLAIN}
    values["clocks"], values["evidence"] = dict(trial.clocks), dict(trial.evidence)
    values["created_at"] = trial.created_at or datetime.now(timezone.utc)
    if verified is not None:
        values["verified"] = verified
    config = trial.config
    row = m.Trial(
        gpu=_shared_gpu(session, gpu),
        toolchain=_shared(session, m.ToolchainRow, rows.toolchain, toolchain.key, **vars(toolchain)),
        problem=_shared_problem(session, problem),
        config=_shared(
            session,
            m.Config,
            rows.config,
            config.identity,
            digest=config.key,
            schedule=config.schedule,
            version=config.version,
            text=config.text,
        ),
        **values,
    )
    session.add(row)
    session.flush()
    return row


def _insert_best(session: Session, trial: m.Trial, record: BestRecord) -> None:
    values = {"trial_id": trial.id, "comparison": dict(record.comparison), "updated_at": datetime.now(timezone.utc)}
    place = {name: getattr(trial, name) for name in ("problem_id", "gpu_id", "toolchain_id", "origin")}
    place["space"] = record.space
    query = select(m.Best).filter_by(**place)
    row = session.scalars(query).first()
    if row is None:
        session.add(m.Best(**place, **values))
    else:
        for name, value in values.items():
            setattr(row, name, value)
