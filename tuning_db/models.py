"""The tables of the tuning database as SQLAlchemy models.

Types and constraints are those that SQLite and PostgreSQL share. Shared facts (GPU, toolchain, problem, config) are
rows of their own, found by a unique `key`. The constraints of `trials` keep measured and modelled times apart
whoever writes. A change here needs a migration; a test compares the two.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

REVISION = "0005"
"""The revision these models describe: the head of the migrations."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, kept in UTC; SQLite keeps no time zone of its own."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """As the base's; None for what is damaged, so that the rest of the row can be read."""
        process = super().result_processor(dialect, coltype)

        def read(value: Any) -> datetime | None:
            try:
                return process(value) if process else value
            except (ValueError, TypeError, AttributeError):
                return None

        return read

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


class Base(DeclarativeBase):
    """Base of all models; constraints get the same names on every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {dict[str, Any]: JSON, datetime: UtcDateTime, float: Double, str: Text}

    if TYPE_CHECKING:  # every model has one
        id: Mapped[int]


class Keyed(Base):
    """A model whose rows are found by a unique key."""

    __abstract__ = True

    if TYPE_CHECKING:
        key: Mapped[str]


class Gpu(Keyed):
    """A GPU, by everything of it that decides a kernel's time."""

    __tablename__ = "gpus"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str]
    arch: Mapped[str]
    sm_count: Mapped[int]
    l2_bytes: Mapped[int] = mapped_column(BigInteger)
    power_limit: Mapped[int | None]
    driver: Mapped[str | None]


class ToolchainRow(Keyed):
    """Versions of NVRTC and kgen, and the digest of kgen's generator."""

    __tablename__ = "toolchains"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    nvrtc: Mapped[str]
    kgen: Mapped[str]
    schema: Mapped[str]


class Problem(Keyed):
    """An operator with shapes, dtypes, layouts and alignment."""

    __tablename__ = "problems"
    __table_args__ = (Index(None, "digest"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    operator: Mapped[str]
    digest: Mapped[str] = mapped_column(String(64))
    text: Mapped[str]
    family: Mapped[str]
    sizes: Mapped[dict[str, Any]]


class Config(Keyed):
    """A config as printed; `digest` is the hash its schedule gives it."""

    __tablename__ = "configs"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    digest: Mapped[str] = mapped_column(String(64))
    schedule: Mapped[str]
    version: Mapped[int]
    text: Mapped[str]


class Trial(Base):
    """What became of one config on one GPU with one toolchain."""

    __tablename__ = "trials"
    __table_args__ = (
        Index(None, "problem_id", "gpu_id"),
        CheckConstraint(
            "status IN ('ok', 'compile_error', 'rejected', 'wrong', 'crashed', 'timeout')", name="status"
        ),
        CheckConstraint(
            "(origin = 'measured' AND modelled_seconds IS NULL AND ((status = 'ok') = (seconds IS NOT NULL))) OR "
            "(origin = 'modelled' AND seconds IS NULL AND lower_seconds IS NULL AND upper_seconds IS NULL "
            "AND samples IS NULL AND ((status = 'ok') = (modelled_seconds IS NOT NULL)))",
            name="origin",
        ),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(primary_key=True)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    config_id: Mapped[int] = mapped_column(ForeignKey("configs.id"))
    gpu_id: Mapped[int] = mapped_column(ForeignKey("gpus.id"))
    toolchain_id: Mapped[int] = mapped_column(ForeignKey("toolchains.id"))
    status: Mapped[str] = mapped_column(String(16))
    origin: Mapped[str] = mapped_column(String(16))
    source_digest: Mapped[str]
    seconds: Mapped[float | None]
    lower: Mapped[float | None] = mapped_column("lower_seconds")
    upper: Mapped[float | None] = mapped_column("upper_seconds")
    samples: Mapped[int | None]
    modelled_seconds: Mapped[float | None]
    registers: Mapped[int | None]
    spills: Mapped[int | None]
    shared: Mapped[int | None]
    policy: Mapped[str]
    clocks: Mapped[dict[str, Any]]
    evidence: Mapped[dict[str, Any]]
    verified: Mapped[bool]
    created_at: Mapped[datetime]

    problem: Mapped[Problem] = relationship(lazy="joined", innerjoin=True)
    config: Mapped[Config] = relationship(lazy="joined", innerjoin=True)
    gpu: Mapped[Gpu] = relationship(lazy="joined", innerjoin=True)
    toolchain: Mapped[ToolchainRow] = relationship(lazy="joined", innerjoin=True)


class Best(Base):
    """The winning trial of a problem, one for each GPU, toolchain, origin and space that was searched ("": all of it)."""

    __tablename__ = "best"
    __table_args__ = (UniqueConstraint("problem_id", "gpu_id", "toolchain_id", "origin", "space"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    gpu_id: Mapped[int] = mapped_column(ForeignKey("gpus.id"))
    toolchain_id: Mapped[int] = mapped_column(ForeignKey("toolchains.id"))
    origin: Mapped[str] = mapped_column(String(16))
    space: Mapped[str] = mapped_column(String(1000), default="")
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"), index=True)
    comparison: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime]

    trial: Mapped[Trial] = relationship(lazy="joined", innerjoin=True)


class Deferred(Base):
    """A problem whose tuning was put off on a GPU. `place` is where its operator is defined, as `kgen tune` takes it."""

    __tablename__ = "deferred"
    __table_args__ = (UniqueConstraint("problem_id", "gpu_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    gpu_id: Mapped[int] = mapped_column(ForeignKey("gpus.id"))
    place: Mapped[str]
    created_at: Mapped[datetime]

    problem: Mapped[Problem] = relationship(lazy="joined", innerjoin=True)
    gpu: Mapped[Gpu] = relationship(lazy="joined", innerjoin=True)


class Bucket(Base):
    """A config for the sizes `spans` of a class of problems, by a trial of it at one of that class."""

    __tablename__ = "buckets"

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"), index=True)
    space: Mapped[str] = mapped_column(String(1000), default="")
    spans: Mapped[dict[str, Any]]
    evidence: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime]

    trial: Mapped[Trial] = relationship(lazy="joined", innerjoin=True)
