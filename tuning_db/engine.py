"""From a URL to a SQLAlchemy engine whose database is at the newest revision, or one clear DatabaseError.

SQLite runs with the rollback journal (write-ahead logs do not work on network file systems, and older releases of
SQLite can corrupt one), synchronous FULL, foreign keys on, and BEGIN IMMEDIATE for writers, so that two writers
queue up instead of failing half-way. Nothing here ever deletes or repairs a database: busy is not corrupt, and
corrupt is for the user to judge.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from kgen.codegen.settings import shown_database, user_path
from kgen.dsl.errors import DatabaseError
from kgen.tuning_db.models import REVISION

VERSION_TABLE = "kgen_version"
BUSY_SECONDS = 60
_migrating = threading.Lock()
# A connection that Ctrl-C breaks off as it is closed is logged as an error. Who has set up no logging would see a traceback.
logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())


@contextmanager
def explained(action: str, where: str) -> Iterator[None]:
    """Turns what the database or the file system raises into a DatabaseError that says what to do."""
    try:
        yield
    except DatabaseError:
        raise
    except ImportError as error:
        raise DatabaseError(f"cannot {action} {where}: {error}; install the driver that this URL names") from error
    except (SQLAlchemyError, OSError, ValueError) as error:
        cause = " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
        raise DatabaseError(
            f"cannot {action} {where}: {cause}; nothing was deleted. Check that it is kgen's own database, that it is "
            f"writable and that no other program holds it, or give another database (a path or a SQLAlchemy URL)"
        ) from error


def parse_url(url: str | os.PathLike[str]) -> URL:
    """The URL of a plain path (SQLite) or of a SQLAlchemy URL, checked but not yet opened."""
    given = os.fspath(url)
    if "://" in given:
        with explained("use the database URL", repr(shown_database(given))):
            parsed = make_url(given)
            parsed.get_dialect()
            return parsed
    if not given.strip() or "\0" in given or re.match(r"[A-Za-z][A-Za-z0-9+]+:", given):
        raise DatabaseError(
            f"malformed database {given!r}; expected a path such as tuning.sqlite or a URL such as "
            f"sqlite:///tuning.sqlite or postgresql://user@host/kgen"
        )
    return URL.create("sqlite", database=str(user_path(given)))


def open_engine(url: URL, readonly: bool = False) -> Engine:
    """An engine on `url` with its tables at the newest revision. The folder of a new SQLite file is made private.

    With `readonly` nothing is made and nothing written, except that a database of an older kgen is migrated.
    """
    where = shown(url)
    with explained("open the tuning database", where):
        path = sqlite_path(url)
        options: dict[str, Any] = {"json_serializer": _to_json, "json_deserializer": _from_json}
        if path is not None:
            _prepare_file(path, where, readonly)
            options["poolclass"] = NullPool  # no connection is held open, so none is ever shared across a fork
        if path is not None and readonly:
            place = f"{path.absolute().as_uri()}?mode=ro"
            options["creator"] = lambda: sqlite3.connect(place, uri=True, timeout=BUSY_SECONDS)
        elif url.get_backend_name() == "sqlite":
            options["connect_args"] = {"timeout": BUSY_SECONDS}
        else:
            options["pool_pre_ping"] = True  # a connection from before the server's restart is not used
        engine = create_engine(url, **options)
        if engine.dialect.name == "sqlite":
            _configure_sqlite(engine, readonly)
        try:
            found = _revision(engine, where)
            if readonly and found is None:
                raise DatabaseError(f"cannot read the tuning database {where}: it is empty; kgen tune makes one")
            if found == REVISION:
                return engine
            if not readonly:
                _migrate(engine, where)
                return engine
        except BaseException:
            engine.dispose()
            raise
        engine.dispose()
        return open_engine(url)


def shown(url: URL) -> str:
    """The database as messages name it: the path of a file, else the URL without its password."""
    path = sqlite_path(url)
    if path is None and url.get_backend_name() == "sqlite":
        return "memory (gone when this process ends)"
    return str(path) if path is not None else url.render_as_string(hide_password=True)


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite URL; None for other databases and for one in memory."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:") or "uri" in url.query:
        return None
    return Path(str(url.database))


def writing(engine: Engine) -> Engine:
    """The same engine for transactions that write."""
    return engine.execution_options(kgen_write=True)


def revision_of(connection: Connection) -> str | None:
    """The revision the database is at; None when it is empty. DatabaseError when its tables are not kgen's."""
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE in tables:
        rows = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()
        if len(rows) == 1:
            return str(rows[0])
        raise DatabaseError(f"it names {len(rows)} revisions where one is expected; give another database")
    if tables:
        raise DatabaseError(
            f"it holds tables that are not kgen's ({', '.join(sorted(tables)[:5])}); give another database"
        )
    return None


def integrity(connection: Connection) -> list[str]:
    """What the database itself finds wrong with its file; empty when all is well or it offers no such check."""
    if connection.dialect.name != "sqlite":
        return []
    found = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check")) if row[0] != "ok"]
    broken = connection.execute(text("PRAGMA foreign_key_check")).all()
    return found + [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in broken]


def _to_json(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def _from_json(text: Any) -> Any:
    """None for what is damaged: the record that is to hold it refuses that."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None


def _prepare_file(path: Path, where: str, readonly: bool) -> None:
    folder = path.parent
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise DatabaseError(f"cannot open the tuning database {where}: it is {kind}; give a path to a file")
    if readonly:
        if not path.exists():
            raise DatabaseError(f"no tuning database {where}; expected one that kgen tune made")
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite writes its journal beside the file, so the folder must be writable too.
    for needed in [folder, path] if path.exists() else [folder]:
        if not os.access(needed, os.W_OK):
            raise DatabaseError(f"cannot open the tuning database {where}: {needed} is not writable; give another path")


def _configure_sqlite(engine: Engine, readonly: bool) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, record: object) -> None:
        connection.isolation_level = None  # the driver begins no transaction by itself; `on_begin` does
        for pragma in ("foreign_keys = ON", *(() if readonly else ("journal_mode = DELETE", "synchronous = FULL"))):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("kgen_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _revision(engine: Engine, where: str) -> str | None:
    try:
        with engine.begin() as connection:
            return revision_of(connection)
    except DatabaseError as error:
        raise DatabaseError(f"cannot open the tuning database {where}: {error}") from error


def _migrate(engine: Engine, where: str) -> None:
    try:
        with _migrating, writing(engine).begin() as connection:
            _upgrade(connection, where)
    except SQLAlchemyError:
        if _revision(engine, where) != REVISION:  # else another process migrated it at the same moment
            raise


def _upgrade(connection: Connection, where: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    found = revision_of(connection)
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    if found is not None and found not in known:
        raise DatabaseError(
            f"cannot open the tuning database {where}: its revision {found!r} is newer than this kgen knows "
            f"({REVISION!r}); upgrade kgen or give another database"
        )
    command.upgrade(config, "head")
