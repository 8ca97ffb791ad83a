"""What may happen to a database: read-only, damaged row by row, full, its server gone, its process forked."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import stat
from dataclasses import replace

import pytest
from sqlalchemy import QueuePool, create_engine, event
from sqlalchemy.exc import OperationalError

from kgen.dsl.errors import DatabaseError
from kgen.tuning_db import Store, engine, export_pack, import_pack, is_there, open_store


@pytest.fixture
def filled(tmp_path, gpu, toolchain, problem, trial):
    """The path of a database with two problems, each with a best of two trials."""
    path = tmp_path / "t.sqlite"
    with open_store(path) as store:
        for M in (64, 128):
            store.add_trial(gpu, toolchain, problem(M), trial(32))
            comparison = {"search": {"seconds": 1.5, "trials": 2, "exhausted": False}}
            store.set_best(store.add_trial(gpu, toolchain, problem(M), trial(64)), comparison)
    return path


def change(path, sql, *values):
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        connection.execute(sql, values)
    connection.close()


# Read-only.


def test_reading_needs_no_permission_to_write_and_changes_nothing(filled, gpu, toolchain, problem, trial):
    before = filled.read_bytes()
    filled.chmod(0o444)
    filled.parent.chmod(0o555)
    try:
        with open_store(filled, readonly=True) as store:
            assert len(store.trials(problem(64), gpu)) == 2
            assert store.best(problem(64), gpu) is not None
            assert store.statistics().problems == 2
            assert store.check() == []
            with pytest.raises(DatabaseError, match="readonly database"):
                store.add_trial(gpu, toolchain, problem(64), trial(16))
    finally:
        filled.parent.chmod(0o755)
    assert (os.listdir(filled.parent), filled.read_bytes()) == ([filled.name], before)


@pytest.mark.parametrize("name", ["none.sqlite", "new/none.sqlite"])
def test_reading_makes_nothing(tmp_path, name):
    for url in (tmp_path / name, f"sqlite:///{tmp_path / name}"):
        assert not is_there(url)
        with pytest.raises(DatabaseError, match="no tuning database"):
            open_store(url, readonly=True)
    assert os.listdir(tmp_path) == []
    (tmp_path / "empty.sqlite").touch()
    for url in (tmp_path / "empty.sqlite", "sqlite://"):
        with pytest.raises(DatabaseError, match="it is empty"):
            open_store(url, readonly=True)


def test_a_path_to_read_may_hold_characters_with_a_meaning_in_urls(tmp_path):
    path = tmp_path / "100% a?b#c" / "t 1.sqlite"
    open_store(path).close()
    assert open_store(path, readonly=True).check() == []


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for readonly in (True, False):
        with pytest.raises(DatabaseError, match="no regular file"):
            open_store(tmp_path / "fifo", readonly)


def test_a_database_in_memory_is_said_to_be_one():
    for url in (":memory:", "sqlite://"):
        with open_store(url) as store:
            assert store.where == "memory (gone when this process ends)"


# Damage.

ROWS = [
    ("trials", "origin", "meassured"),
    ("trials", "status", "fine"),
    ("trials", "evidence", "{"),
    ("trials", "clocks", b"\xff\xfe"),
    ("trials", "evidence", '{"a": NaN}'),
    ("trials", "seconds", "soon"),
    ("trials", "seconds", -1.0),
    ("trials", "registers", "many"),
    ("trials", "source_digest", b"\x00"),
    ("configs", "text", f"MmaGemm(BM={'9' * 5000})"),
    ("configs", "text", "MmaGemm(BM=1"),
    ("configs", "text", 7),
    ("configs", "version", None),
    ("problems", "sizes", "[]"),
    ("problems", "operator", b"\x01"),
    ("problems", "digest", "no digest"),
    ("gpus", "arch", "hopper"),
    ("gpus", "sm_count", "x"),
    ("toolchains", "schema", ""),
    ("best", "comparison", "null"),
    ("best", "comparison", '{"search": 5}'),
    ("best", "comparison", '{"search": {"seconds": "1"}}'),
    ("best", "origin", "both"),
]


@pytest.mark.parametrize(("table", "column", "value"), ROWS)
def test_a_row_that_does_not_hold_what_it_should_counts_as_not_there(
    filled, gpu, toolchain, problem, trial, table, column, value
):
    """It is named by `check`; no call fails, what is stored anew takes its place, and facts that trials share are mended."""
    try:
        change(filled, f"UPDATE {table} SET {column} = ? WHERE id = (SELECT max(id) FROM {table})", value)
    except sqlite3.IntegrityError:  # the schema itself refuses NULL
        return
    with open_store(filled) as store:
        assert store.check() != []
        store.statistics()
        store.problems()
        for M in (64, 128):
            assert len(store.trials(problem(M), gpu)) <= 2
            store.best(problem(M), gpu)
        assert len(store.best_of_operator(problem().digest, gpu)) <= 2
        assert len(store.all_best(gpu, "measured")) <= 2
        number = store.add_trial(gpu, toolchain, problem(128), trial(256))
        store.set_best(number)
        assert number in [t.id for t in store.trials(problem(128), gpu)]
        assert store.best(problem(128), gpu).trial.id == number


def test_a_date_that_is_damaged_costs_the_date_alone(filled, gpu, problem):
    for value in ("yesterday", 5, b"\xff"):
        change(filled, "UPDATE trials SET created_at = ?", value)
        with open_store(filled, readonly=True) as store:
            assert [t.created_at for t in store.trials(problem(), gpu)] == [None, None]


def test_a_full_database_says_so(filled, gpu, toolchain, problem, trial):
    with open_store(filled) as store:
        count = os.path.getsize(filled) // 4096

        @event.listens_for(store.engine, "connect")
        def limit(connection, record):
            connection.execute(f"PRAGMA max_page_count = {count}")

        long = replace(problem(), text="M=64 " * 10_000)  # it is the shared facts that do not fit

        def fill():
            for size in range(100):
                store.add_trial(gpu, toolchain, replace(long, text=f"{long.text}{size}"), trial(size))

        with pytest.raises(DatabaseError, match="database or disk is full"):
            fill()
    with open_store(filled) as store:
        assert store.check() == []


# Servers: what SQLite behind a pool shows of it.


@pytest.fixture
def pooled(filled):
    """The same database behind a pool that keeps its connection, as a server's does."""
    made = create_engine(f"sqlite:///{filled}", poolclass=QueuePool, json_serializer=json.dumps)
    engine._configure_sqlite(made, readonly=False)
    store = Store(made, "pooled")
    store._pauses = (0.0, 0.0)
    yield store
    store.close()


def failing(store, times, error):
    """Lets the next `times` statements that insert fail."""
    left = [times]

    @event.listens_for(store.engine, "before_cursor_execute")
    def fail(connection, cursor, statement, *_):
        if statement.startswith(("INSERT", "SELECT trials")) and left[0]:
            left[0] -= 1
            raise error

    return left


@pytest.mark.parametrize("times", [1, 2])
def test_what_a_server_does_not_take_is_tried_again(pooled, gpu, toolchain, problem, trial, times):
    gone = OperationalError("INSERT", {}, Exception("server closed the connection unexpectedly"))
    failing(pooled, times, gone)
    before = pooled.statistics().trials["measured"]["ok"]
    number = pooled.add_trial(gpu, toolchain, problem(), trial(512))
    assert pooled.statistics().trials["measured"]["ok"] == before + 1
    failing(pooled, times, gone)
    assert number in [t.id for t in pooled.trials(problem(), gpu)]


def test_what_a_server_never_takes_is_an_error(pooled, gpu, toolchain, problem, trial):
    left = failing(pooled, 99, OperationalError("INSERT", {}, Exception("server closed the connection unexpectedly")))
    with pytest.raises(DatabaseError, match="server closed"):
        pooled.add_trial(gpu, toolchain, problem(), trial(512))
    assert left == [96]


def test_two_writers_that_make_the_same_row_do_no_harm(pooled, gpu, toolchain, problem, trial):
    """Another writer stores the same new problem between this one's look and its insertion."""
    raced = []

    @event.listens_for(pooled.engine, "before_cursor_execute")
    def race(connection, cursor, statement, parameters, *_):
        if statement.startswith("INSERT INTO problems") and not raced:
            raced.append(statement)
            cursor.execute(statement, parameters)  # the same row, a moment earlier

    pooled.add_trial(gpu, toolchain, problem(999), trial(512))
    assert raced
    assert len(pooled.trials(problem(999), gpu)) == 1
    assert pooled.check() == []


@pytest.mark.parametrize("url", ["pool", "memory"])
def test_a_forked_process_has_connections_of_its_own(pooled, gpu, toolchain, problem, trial, url):
    store = pooled if url == "pool" else open_store("sqlite://")
    store.add_trial(gpu, toolchain, problem(), trial(8))
    count = len(store.trials(problem(), gpu))
    assert url == "memory" or store.engine.pool.checkedin() == 1
    store._lock.acquire()  # as another thread would, at the moment of the fork
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        inherited = store.engine.pool.checkedin() if url == "pool" else 0
        found = len(store.trials(problem(), gpu))
        store.best(problem(), gpu)
        store.refresh()
        os.write(write, f"{inherited} {found}".encode())
        os._exit(0)
    store._lock.release()
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read() == f"0 {count}"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(store.trials(problem(), gpu)) == count


# Packs.


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_pack_has_the_mode_that_the_umask_leaves(filled, tmp_path, gpu, umask):
    path = tmp_path / "p.json"
    before = os.umask(umask)
    try:
        with open_store(filled, readonly=True) as store:
            for _ in range(2):  # new, and in place of the one before
                assert export_pack(store, gpu, path) == 2
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert sorted(os.listdir(tmp_path)) == ["p.json", "t.sqlite"]


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder", "socket"])
def test_what_is_no_regular_file_is_not_replaced_by_a_pack(filled, tmp_path, gpu, kind, monkeypatch):
    """Devices are told apart by the same question; no test points kgen at one."""
    path, other = tmp_path / "p.json", tmp_path / "other"
    if kind == "link":
        other.write_text("not to be replaced")
    if kind in ("link", "dangling"):
        path.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    before = path.lstat()
    with (
        open_store(filled, readonly=True) as store,
        pytest.raises(DatabaseError, match=f"{path}: it is no regular file"),
    ):
        export_pack(store, gpu, path)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert kind != "link" or other.read_text() == "not to be replaced"
    assert not list(tmp_path.glob(".p.json*"))


@pytest.mark.parametrize(
    ("where", "value", "match"),
    [
        (("comparison",), {"search": 5}, "comparison: search is 5"),
        (("comparison",), {"search": {"seconds": "1"}}, "comparison's search: seconds is '1'"),
        (("comparison",), {"search": {"trials": 1.5}}, "comparison's search: trials is 1.5"),
        (("comparison",), {"search": {"exhausted": "yes"}}, "comparison's search: exhausted is 'yes'"),
        (("comparison",), {"provisional": 1}, "comparison: provisional is 1"),
        (("comparison",), {"speedup_over_default": [2.0]}, "comparison: speedup_over_default is"),
        (("comparison",), {"beats_opponent": None}, "comparison: beats_opponent is None"),
        (("trial", "config", "text"), f"MmaGemm(BM={'9' * 5000})", "malformed value '9+'"),
        (("trial", "config", "text"), "MmaGemm(BM=64", "malformed config"),
        (("trial", "config", "text"), "MmaGemm(BM=exit())", "malformed value"),
        (("trial", "config", "text"), "SimtGemm(BM=64)", "schedule of the config is 'SimtGemm'"),
    ],
)
def test_a_pack_that_tuning_could_not_read_is_refused(filled, tmp_path, gpu, where, value, match):
    path = tmp_path / "p.json"
    with open_store(filled, readonly=True) as store:
        export_pack(store, gpu, path)
    pack = json.loads(path.read_text())
    place = pack["entries"][0]
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    path.write_text(json.dumps(pack))
    with open_store(tmp_path / "target.sqlite") as store:
        with pytest.raises(DatabaseError, match=match) as error:
            import_pack(store, gpu, path)
        assert len(str(error.value)) < 1000
        assert store.statistics().best == 0
