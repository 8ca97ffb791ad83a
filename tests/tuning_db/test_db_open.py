"""Opening: migrations, idempotence, and every kind of database that must be refused untouched."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kgen.dsl.errors import DatabaseError
from kgen.dsl.family import schedules
from kgen.tuner.records import read_config
from kgen.tuning_db import ConfigText, engine, open_store
from kgen.tuning_db.models import REVISION, Base


def test_migrations_from_empty_make_what_the_models_say(store):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with store.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": engine.VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_the_constraints_of_migrations_and_models_are_the_same(tmp_path):
    from sqlalchemy import create_engine, inspect

    def constraints(bind):
        see = inspect(bind)
        for table in sorted(Base.metadata.tables):
            for kind in (see.get_check_constraints, see.get_foreign_keys, see.get_unique_constraints):
                yield table, sorted((str(item["name"]), str(item)) for item in kind(table))

    Base.metadata.create_all(made := create_engine(f"sqlite:///{tmp_path}/models.sqlite"))
    with open_store(tmp_path / "t.sqlite") as store:
        assert list(constraints(store.engine)) == list(constraints(made))


def test_the_models_revision_is_the_head_of_the_migrations():
    from alembic.script import ScriptDirectory

    assert ScriptDirectory(str(Path(engine.__file__).parent / "migrations")).get_heads() == [REVISION]


def test_opening_again_changes_nothing(tmp_path, gpu, toolchain, problem, trial):
    path = tmp_path / "t.sqlite"
    with open_store(path) as store:
        store.add_trial(gpu, toolchain, problem(), trial())
    before = path.read_bytes()
    with open_store(f"sqlite:///{path}") as store:
        assert len(store.trials(problem(), gpu)) == 1
        assert store.statistics().revision == REVISION
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["t.sqlite"]


def migrated(store, change, revision):
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(engine.__file__).parent / "migrations"))
    with engine.writing(store.engine).begin() as connection:
        config.attributes["connection"] = connection
        change(config, revision)


def test_a_database_of_the_first_revision_keeps_its_bests(tmp_path, gpu, toolchain, problem, trial):
    from alembic import command

    path = tmp_path / "t.sqlite"
    with open_store(path) as store:
        number = store.add_trial(gpu, toolchain, problem(), trial())
        store.set_best(number, {"speedup_over_default": 2.0})
        store.set_best(number, {"speedup_over_default": 3.0}, space="MmaGemm(BM=64)")
        migrated(store, command.downgrade, "0001")
    for readonly in (True, False):
        with open_store(path, readonly) as store:
            assert store.statistics().revision == REVISION
            best = store.best(problem(), gpu)
            assert (best.comparison, best.space) == ({"speedup_over_default": 2.0}, "")
            assert store.best(problem(), gpu, space="MmaGemm(BM=64)") is None
            assert store.check() == []


#: Configs and spaces as revision 0002 had them, and as they are now. OfAUser is derived from Elementwise; Own is one with
#: a template of its own, and keeps its names.
RENAMED = [
    ("WgmmaGemm(swap=True, BM=128, BN=64, BK=64, consumers=1, pingpong=False, blocks=1, cluster='1x1', work='stream', "
     "splits=2, store='tma', slabs=2, stages=4, raster='m', group=8, overlap=True)",
     "WgmmaGemm(swap_ab=True, BM=128, BN=64, BK=64, consumers=1, pingpong=False, blocks_per_sm=1, cluster='1x1', "
     "work='stream_k', splits=2, store='tma', epilogue_stages=2, stages=4, raster='m', group=8, pdl=True)",
     "WgmmaGemm(work='tiles'|'stream'|'split', slabs=2|4)",
     "WgmmaGemm(work='tiles'|'stream_k'|'split_k', epilogue_stages=2|4)"),
    ("ColumnStats(pack=1, items=2, threads=64, lanes=8, waves=4, load='default')",
     "ColumnStats(pack=1, items=2, threads=64, lanes=8, blocks_per_sm=4, load='default')",
     "", ""),
    ("Nms(chunk=128, threads=256, held=2, blocks=1)", "Nms(chunk=128, threads=256, held=2, blocks_per_sm=1)",
     f"Nms(blocks={'|'.join(map(str, range(274)))})", None),
    ("OfAUser(pack=1, items=2, along='vectors', threads=64, waves=0, load='default', store='default')",
     "OfAUser(pack=1, items=2, along='vectors', threads=64, blocks_per_sm=0, load='default', store='default')",
     "Nms(); Own(waves=4); OfAUser(waves=0|1)", "Nms(); Own(waves=4); OfAUser(blocks_per_sm=0|1)"),
    ("Own(waves=4, blocks=2, work='split')",) * 2 + ("Own(waves=4)",) * 2,
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "searched", "space"), RENAMED, ids=[before[: before.index("(")] for before, *_ in RENAMED]
)
def test_a_best_is_found_by_the_new_names_of_fields(
    tmp_path, gpu, toolchain, problem, trial, before, after, searched, space
):
    from alembic import command

    def stored(text):
        key = hashlib.sha256(f"{text} v1".encode()).hexdigest()[:16]
        return ConfigText(text[: text.index("(")], 1, text, key)

    if space is None:  # with its new name it is too long to be stored as it is
        whole = searched.replace("blocks", "blocks_per_sm")
        assert len(searched) <= 1000 < len(whole)
        space = f"{whole[:900]}... {hashlib.sha256(whole.encode()).hexdigest()}"
    path = tmp_path / "t.sqlite"
    with open_store(path) as store:
        migrated(store, command.downgrade, "0002")
        number = store.add_trial(gpu, toolchain, problem(), trial(config=stored(before)))
        comparison = {"default": before, "final": {before: {"seconds": 1.0}}, "speedup_over_default": 2.0}
        store.set_best(number, comparison, searched)
    with open_store(path) as store:
        best = store.best(problem(), gpu, space=space)
        assert best.trial.config == stored(after)
        assert best.comparison == {"default": after, "final": {after: {"seconds": 1.0}}, "speedup_over_default": 2.0}
        if best.trial.config.schedule in schedules():
            assert repr(read_config(best.trial.config)) == after
        store.add_trial(gpu, toolchain, problem(), trial(config=stored(after)))
        assert store.statistics().configs == 1  # found by its key
        assert store.check() == []
        migrated(store, command.downgrade, "0002")
        assert {t.config for t in store.trials(problem(), gpu)} == {stored(before)}


def test_a_new_folder_is_private_and_an_old_one_is_left_as_it_is(tmp_path):
    tmp_path.chmod(0o755)
    open_store(tmp_path / "new" / "t.sqlite").close()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    open_store(tmp_path / "t.sqlite").close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_path_may_hold_characters_with_a_meaning_in_urls(tmp_path):
    path = tmp_path / "100% a?b#c" / "t 1.sqlite"
    open_store(path).close()
    assert path.is_file()


def test_sqlite_is_opened_for_durability(tmp_path):
    with open_store(tmp_path / "t.sqlite") as store, store.engine.connect() as connection:
        pragmas = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in
                   ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")}  # fmt: skip
    assert pragmas == {"journal_mode": "delete", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 60_000}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
        "a\0b",
        "sqlite:t.sqlite",
        "nosuchdatabase://host/kgen",
        "postgresql+nosuchdriver://host/kgen",
        "postgresql://host:port/kgen",
        "://",
        "sqlite://host/t.sqlite",
    ],
)
def test_malformed_urls(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatabaseError) as error:
        open_store(url)
    assert "\n" not in str(error.value).strip()
    assert os.listdir(tmp_path) == []


def test_a_password_is_not_shown():
    with pytest.raises(DatabaseError) as error:
        open_store("nosuchdatabase://me:secret@host/kgen")
    assert "secret" not in str(error.value)


def refused(path: Path, match: str) -> None:
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match=match):
        open_store(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    "content", [b"not a database\n" * 200, b"\x00" * 5000, b"SQLite format 3\x00" + b"\xff" * 4096]
)
def test_a_file_that_is_no_database_is_left_alone(tmp_path, content):
    path = tmp_path / "t.sqlite"
    path.write_bytes(content)
    refused(path, "cannot open the tuning database")


def test_damage_inside_the_file_is_found_by_check(tmp_path, gpu, toolchain, problem, trial):
    path = tmp_path / "t.sqlite"
    with open_store(path) as store:
        for bm in range(300):
            store.add_trial(gpu, toolchain, problem(), trial(bm, evidence={"log": "x" * 200}))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8192] = b"\xa5" * 8192
    path.write_bytes(data)
    with open_store(path) as store:
        assert store.check() != []
        with pytest.raises(DatabaseError, match="cannot read the tuning database"):
            store.trials(problem(), gpu)
    assert path.read_bytes() == bytes(data)


def test_a_database_of_another_program_is_refused(tmp_path):
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (id INTEGER)")
    connection.close()
    refused(path, "bookmarks")


def test_a_newer_revision_is_refused(tmp_path):
    path = tmp_path / "t.sqlite"
    open_store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {engine.VERSION_TABLE} SET version_num = '9999'")
    connection.close()
    refused(path, "'9999' is newer.*upgrade kgen")


def test_a_lost_revision_is_refused(tmp_path):
    path = tmp_path / "t.sqlite"
    open_store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"DELETE FROM {engine.VERSION_TABLE}")
    connection.close()
    refused(path, "0 revisions")


def test_a_migration_that_fails_leaves_nothing(tmp_path, monkeypatch):
    from alembic import command

    upgrade = command.upgrade

    def fail(*arguments):
        upgrade(*arguments)
        raise OSError("disk on fire")

    monkeypatch.setattr(command, "upgrade", fail)
    with pytest.raises(DatabaseError, match="disk on fire"):
        open_store(tmp_path / "t.sqlite")
    connection = sqlite3.connect(tmp_path / "t.sqlite")
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    connection.close()
    monkeypatch.undo()
    open_store(tmp_path / "t.sqlite").close()


def test_a_folder_and_a_path_below_a_file_are_refused(tmp_path):
    with pytest.raises(DatabaseError, match="is a folder"):
        open_store(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="cannot open"):
        open_store(tmp_path / "file" / "t.sqlite")
    assert (tmp_path / "file").read_text() == ""


def _open_as_nobody(path: str, answer) -> None:
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        open_store(path)
        answer.put("opened")
    except DatabaseError as error:
        answer.put(str(error))


@pytest.mark.parametrize("case", ["folder", "file", "new folder"])
def test_what_is_not_writable_is_refused(case):
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "t.sqlite" if case != "new folder" else folder / "new" / "t.sqlite"
        if case == "file":
            open_store(path).close()
            path.chmod(0o444)
        folder.chmod(0o777 if case == "file" else 0o555)
        before = sorted(folder.rglob("*"))
        answer = fork.SimpleQueue()
        process = fork.Process(target=_open_as_nobody, args=(str(path), answer))
        process.start()
        message = answer.get()
        process.join()
        assert message.startswith("cannot open the tuning database")
        assert "not writable" in message or "Permission denied" in message
        assert sorted(folder.rglob("*")) == before
        folder.chmod(0o700)


def test_a_write_to_a_full_or_lost_database_says_so(tmp_path, gpu, toolchain, problem, trial):
    with open_store(tmp_path / "t.sqlite") as store:
        blocker = sqlite3.connect(tmp_path / "t.sqlite", isolation_level=None)
        blocker.execute("DROP TABLE best")
        blocker.execute("DROP TABLE trials")
        blocker.close()
        with pytest.raises(DatabaseError, match=r"cannot store a trial in the tuning database .*no such table"):
            store.add_trial(gpu, toolchain, problem(), trial())


def test_a_connection_that_an_interrupt_breaks_off_is_told_by_kgen_alone(tmp_path):
    """Ctrl-C as SQLAlchemy closes a connection: no traceback of it beside what the command says."""
    script = f"""
from kgen.tuning_db import open_store
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
def interrupted(self, connection):
    raise KeyboardInterrupt
with open_store({str(tmp_path / "tuning.sqlite")!r}) as store:
    SQLiteDialect_pysqlite.do_close = interrupted
    try:
        with store.engine.connect():
            pass
    except KeyboardInterrupt:
        print("interrupted")
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.stdout == "interrupted\n", run.stderr
    assert run.stderr == ""
