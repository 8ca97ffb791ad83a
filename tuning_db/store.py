"""The store: the one way into the tuning database. Values of `records` go in and come out; no row object leaks.

Every write is one transaction, committed before the call returns. `best` and `best_of_operator` remember their
answers, so that a warm call runs no SQL; what this store writes makes it forget them, what another process writes
is seen after `refresh`.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Engine, Select, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from kgen.dsl.errors import DatabaseError
from kgen.tuning_db import engine as engines
from kgen.tuning_db import models as m
from kgen.tuning_db.records import (
    MEASURED,
    ORIGINS,
    BestRecord,
    ConfigText,
    GpuFacts,
    ProblemKey,
    Statistics,
    Toolchain,
    TrialRecord,
)

_T = TypeVar("_T")
_Row = TypeVar("_Row", bound=m.Base)

_PLAIN = tuple(entry.name for entry in fields(TrialRecord) if entry.name not in ("config", "id"))
"""The columns of a trial that its record holds under the same name."""


def open_store(url: str | os.PathLike[str]) -> Store:
    """Opens a tuning database, creating or migrating it as needed.

    `url` is a path (SQLite) or any SQLAlchemy URL. Raises DatabaseError when it is malformed, unwritable, corrupt, not
    kgen's, or written by a newer kgen; nothing is written then.
    """
    parsed = engines.parse_url(url)
    return Store(engines.open_engine(parsed), engines.shown(parsed))


class Store:
    """An open tuning database. Threads may share one; a forked process opens its own. Made by `open_store`."""

    def __init__(self, engine: Engine, where: str) -> None:
        self.engine = engine
        self.where = where
        self._writer = engines.writing(engine)
        self._lock = threading.Lock()
        self._generation = 0
        self._known: dict[tuple[object, ...], Any] = {}

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
        with self._write("store a trial in") as session:
            return _insert_trial(session, gpu, toolchain, problem, trial).id

    def set_best(self, trial_id: int, comparison: Mapping[str, Any] | None = None) -> None:
        """Makes a trial the best of its own problem, GPU, toolchain and origin, in place of the one before.

        `comparison` is what it was measured against (JSON data): the default config, the opponent.
        """
        with self._write("store the best config in") as session:
            trial = session.get(m.Trial, trial_id)
            if trial is None:
                raise DatabaseError(f"no trial has the id {trial_id!r}; expected one that add_trial returned")
            _insert_best(session, trial, BestRecord(*_key_of(trial), _trial(trial), comparison or {}).comparison)
        self.refresh()

    def import_best(self, gpu: GpuFacts, records: Iterable[BestRecord]) -> int:
        """Stores records from elsewhere for this `gpu`, all or none; returns how many were new.

        They count as unverified. A best already stored for the same problem, toolchain and origin is kept instead.
        """
        stored = 0
        with self._write("import tuned configs into") as session:
            for record in records:
                known = session.scalars(
                    _best_query(gpu, record.origin, m.Problem.key == record.problem.key, record.toolchain)
                ).first()
                if known is None:
                    trial = _insert_trial(session, gpu, record.toolchain, record.problem, record.trial, verified=False)
                    _insert_best(session, trial, record.comparison)
                    stored += 1
        self.refresh()
        return stored

    def mark_verified(self, trial_id: int) -> None:
        """Notes that an imported trial's config proved correct here."""
        with self._write("update") as session:
            trial = session.get(m.Trial, trial_id)
            if trial is None:
                raise DatabaseError(f"no trial has the id {trial_id!r}; expected the id of a stored TrialRecord")
            trial.verified = True
        self.refresh()

    def unset_best(self, trial_id: int) -> None:
        """Takes back `set_best`, for example when a config proves wrong later. The trial itself is kept."""
        with self._write("update") as session:
            session.execute(delete(m.Best).where(m.Best.trial_id == trial_id))
        self.refresh()

    def remove(self, *, gpu: str | None = None, operator: str | None = None) -> int:
        """Deletes the trials, and with them the bests, of a GPU and/or an operator, by name; returns how many."""
        if gpu is None and operator is None:
            raise DatabaseError("nothing named to remove; expected a GPU's name, an operator's name, or both")
        doomed = select(m.Trial.id)
        if gpu is not None:
            doomed = doomed.where(m.Trial.gpu_id.in_(select(m.Gpu.id).where(m.Gpu.name == gpu)))
        if operator is not None:
            doomed = doomed.where(m.Trial.problem_id.in_(select(m.Problem.id).where(m.Problem.operator == operator)))
        with self._write("remove trials from") as session:
            count = session.scalar(select(func.count()).select_from(doomed.subquery())) or 0
            session.execute(delete(m.Best).where(m.Best.trial_id.in_(doomed)))
            session.execute(delete(m.Trial).where(m.Trial.id.in_(doomed)))
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
        with self._read() as session:
            return [_trial(row) for row in session.scalars(query)]

    def best(
        self, problem: ProblemKey, gpu: GpuFacts, origin: str | None = None, toolchain: Toolchain | None = None
    ) -> BestRecord | None:
        """The best config known for a problem on a GPU, or None. Remembered: a warm call runs no SQL.

        Measured comes before modelled, verified before unverified, newer before older. `toolchain` admits only
        results of the same NVRTC and the same schema; kgen's own version number may differ.
        """

        def look_up() -> BestRecord | None:
            query = _best_query(gpu, origin, m.Problem.key == problem.key, toolchain)
            with self._read() as session:
                return min(map(_best, session.scalars(query)), key=_preference, default=None)

        return self._remembered(("best", problem, gpu, origin, toolchain), look_up)

    def best_of_operator(
        self, digest: str, gpu: GpuFacts, origin: str | None = None, toolchain: Toolchain | None = None
    ) -> list[BestRecord]:
        """The `best` of every problem of the operator with this digest on a GPU, for `nearest`. Remembered likewise."""

        def look_up() -> tuple[BestRecord, ...]:
            query = _best_query(gpu, origin, m.Problem.digest == digest, toolchain).order_by(m.Best.id)
            found: dict[str, list[BestRecord]] = defaultdict(list)
            with self._read() as session:
                for record in map(_best, session.scalars(query)):
                    found[record.problem.key].append(record)
            return tuple(min(records, key=_preference) for records in found.values())

        return list(self._remembered(("operator", digest, gpu, origin, toolchain), look_up))

    def all_best(self, gpu: GpuFacts, origin: str, operator: str | None = None) -> list[BestRecord]:
        """Every best of one origin on a GPU, by operator and problem: what a pack holds."""
        query = _best_query(gpu, origin, None if operator is None else m.Problem.operator == operator)
        with self._read() as session:
            return [
                _best(row) for row in session.scalars(query.order_by(m.Problem.operator, m.Problem.text, m.Best.id))
            ]

    def problems(self) -> list[ProblemKey]:
        """The problems with at least one trial, by operator and text."""
        query = select(m.Problem).where(m.Problem.id.in_(select(m.Trial.problem_id)))
        with self._read() as session:
            return [_problem(row) for row in session.scalars(query.order_by(m.Problem.operator, m.Problem.text))]

    def statistics(self) -> Statistics:
        """How much the database holds."""
        with self._read() as session:
            trials: dict[str, dict[str, int]] = {origin: {} for origin in ORIGINS}
            grouped = select(m.Trial.origin, m.Trial.status, func.count()).group_by(m.Trial.origin, m.Trial.status)
            for origin, status, number in session.execute(grouped):
                trials[origin][status] = number
            named = select(m.Problem.operator, func.count()).join(m.Trial, m.Trial.problem_id == m.Problem.id)
            named = named.group_by(m.Problem.operator).order_by(m.Problem.operator)
            return Statistics(
                url=self.where,
                revision=engines.revision_of(session.connection()) or "",
                gpus=tuple(_gpu(row) for row in session.scalars(select(m.Gpu).order_by(m.Gpu.id))),
                problems=session.scalar(select(func.count(m.Trial.problem_id.distinct()))) or 0,
                configs=session.scalar(select(func.count(m.Config.id))) or 0,
                best=session.scalar(select(func.count(m.Best.id))) or 0,
                trials=trials,
                operators={row[0]: row[1] for row in session.execute(named)},
            )

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
        try:
            with self._read() as session:
                found = engines.integrity(session.connection())
                return found + [f"best {row} does not match its trial" for row in session.scalars(strayed)]
        except DatabaseError as error:
            return [str(error)]

    def refresh(self) -> None:
        """Forgets remembered answers, so that what other processes wrote is seen."""
        with self._lock:
            self._generation += 1
            self._known.clear()

    # Transactions and memory.

    @contextmanager
    def _write(self, action: str) -> Iterator[Session]:
        with (
            engines.explained(f"{action} the tuning database", self.where),
            Session(self._writer) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def _read(self) -> Iterator[Session]:
        with engines.explained("read the tuning database", self.where), Session(self.engine) as session:
            yield session

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


def _checked(origin: str) -> str:
    if origin not in ORIGINS:
        raise DatabaseError(f"origin is {origin!r}; expected one of {', '.join(ORIGINS)}")
    return origin


def _best_query(gpu: GpuFacts, origin: str | None, *conditions: ColumnElement[bool] | Toolchain | None) -> Select[Any]:
    query = select(m.Best).join(m.Problem, m.Best.problem_id == m.Problem.id).join(m.Gpu, m.Best.gpu_id == m.Gpu.id)
    query = query.where(m.Gpu.key == gpu.key)
    if origin is not None:
        query = query.where(m.Best.origin == _checked(origin))
    for condition in conditions:
        if isinstance(condition, Toolchain):
            query = query.join(m.ToolchainRow, m.Best.toolchain_id == m.ToolchainRow.id)
            query = query.where(m.ToolchainRow.nvrtc == condition.nvrtc, m.ToolchainRow.schema == condition.schema)
        elif condition is not None:
            query = query.where(condition)
    return query


def _preference(record: BestRecord) -> tuple[bool, bool, int]:
    return record.origin != MEASURED, not record.trial.verified, -(record.trial.id or 0)


def _shared(session: Session, kind: type[_Row], key: str, **values: Any) -> _Row:
    """The row with this key, made when there is none; a writer that makes it at the same moment does no harm."""
    query = select(kind).where(kind.key == key)  # type: ignore[attr-defined]
    row = session.scalars(query).first()
    if row is None:
        row = kind(key=key, **values)
        try:
            with session.begin_nested():
                session.add(row)
        except IntegrityError:
            row = session.scalars(query).one()
    return row


def _insert_trial(
    session: Session,
    gpu: GpuFacts,
    toolchain: Toolchain,
    problem: ProblemKey,
    trial: TrialRecord,
    verified: bool | None = None,
) -> m.Trial:
    values = {name: getattr(trial, name) for name in _PLAIN}
    values["clocks"], values["evidence"] = dict(trial.clocks), dict(trial.evidence)
    values["created_at"] = trial.created_at or datetime.now(timezone.utc)
    if verified is not None:
        values["verified"] = verified
    config = trial.config
    row = m.Trial(
        gpu=_shared(session, m.Gpu, gpu.key, **vars(gpu)),
        toolchain=_shared(session, m.ToolchainRow, toolchain.key, **vars(toolchain)),
        problem=_shared(session, m.Problem, problem.key, **{**vars(problem), "sizes": dict(problem.sizes)}),
        config=_shared(
            session,
            m.Config,
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


def _insert_best(session: Session, trial: m.Trial, comparison: Mapping[str, Any]) -> None:
    values = {"trial_id": trial.id, "comparison": dict(comparison), "updated_at": datetime.now(timezone.utc)}
    place = {name: getattr(trial, name) for name in ("problem_id", "gpu_id", "toolchain_id", "origin")}
    query = select(m.Best).filter_by(**place)
    row = session.scalars(query).first()
    if row is None:
        try:
            with session.begin_nested():
                session.add(m.Best(**place, **values))
            return
        except IntegrityError:
            row = session.scalars(query).one()
    for name, value in values.items():
        setattr(row, name, value)


def _gpu(row: m.Gpu) -> GpuFacts:
    return GpuFacts(row.name, row.arch, row.sm_count, row.l2_bytes, row.power_limit, row.driver)


def _problem(row: m.Problem) -> ProblemKey:
    return ProblemKey(row.operator, row.digest, row.text, row.family, row.sizes)


def _trial(row: m.Trial) -> TrialRecord:
    config = ConfigText(row.config.schedule, row.config.version, row.config.text, row.config.digest)
    return TrialRecord(config, id=row.id, **{name: getattr(row, name) for name in _PLAIN})


def _key_of(row: m.Trial) -> tuple[ProblemKey, GpuFacts, Toolchain]:
    toolchain = Toolchain(row.toolchain.nvrtc, row.toolchain.kgen, row.toolchain.schema)
    return _problem(row.problem), _gpu(row.gpu), toolchain


def _best(row: m.Best) -> BestRecord:
    return BestRecord(*_key_of(row.trial), _trial(row.trial), row.comparison)
