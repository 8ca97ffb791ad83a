"""Every verb that reads the database reads one that cannot be written, and makes none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer
from cli_runs import Kgen, invoke

from kgen.cli.main import app
from kgen.gpu import driver

GELU = ["gelu", "--shape", "4096", "--gpu", "H200"]
#: What each verb with --db is given. A new one must be added here, or among those that write.
READING = {
    "show": ["gelu"],
    "explain": GELU,
    "source": GELU,
    "export": [*GELU, "--out", "out"],
    "verify": GELU,
    "doctor": [],
    "db path": [],
    "db stats": [],
    "db best": [],
    "db buckets": [],
    "db trials": ["gelu"],
    "db export": ["out.json", "--modelled"],
    "db check": [],
}
WRITING = {"tune", "db import", "db prune"}
#: bench reads it by the same function as show, but goes no way without a GPU; fit none without what one measured.
ON_A_GPU = {"bench", "fit"}
#: Those that go on without the default database where there is none.
WITHOUT = {"show", "explain", "source", "export", "verify", "doctor", "db path"}


def verbs() -> set[str]:
    """Every verb with --db."""
    found = set()
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for inner, verb in getattr(command, "commands", {"": command}).items():
            if any("--db" in option.opts for option in verb.params):
                found.add(f"{name} {inner}".strip())
    return found


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one tuned problem, that cannot be written, in a folder that cannot be."""
    path = tmp_path_factory.mktemp("tuned") / "tuning.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "device_count", lambda: 0)
        assert invoke("tune", *GELU, "--db", str(path)).code == 0
    path.chmod(0o444)
    path.parent.chmod(0o555)
    return path


def test_every_verb_with_a_database_is_known_to_read_or_to_write() -> None:
    assert verbs() == READING.keys() | WRITING | ON_A_GPU


@pytest.mark.parametrize("verb", READING)
def test_a_database_that_cannot_be_written_is_read(
    kgen: Kgen, tuned: Path, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # The tests may run as root, to whom permissions are nothing: the system is asked, and SQLite, which opens to read alone.
    monkeypatch.setattr(
        os, "access", lambda path, mode, **_: not mode & os.W_OK or not str(path).startswith(str(tuned.parent))
    )
    before = tuned.read_bytes(), os.listdir(tuned.parent)
    ran = kgen(*verb.split(), *READING[verb], "--db", f"sqlite:///{tuned}")
    assert ran.code == 0, ran.err
    assert "writable" not in ran.err
    assert (tuned.read_bytes(), os.listdir(tuned.parent)) == before


@pytest.mark.parametrize("verb", READING)
def test_reading_makes_no_database(kgen: Kgen, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("new.sqlite", "sqlite:///new.sqlite", "folder/new.sqlite")[: 1 if verb == "doctor" else 3]:
        ran = kgen(*verb.split(), *READING[verb], "--db", name)
        assert ran.code == (0 if verb in ("doctor", "db path") else 2), ran.err
        assert verb in ("doctor", "db path") or "no tuning database" in ran.err
    if verb not in ("verify", "doctor"):  # as explain and source, but slower
        ran = kgen(*verb.split(), *READING[verb])
        assert ran.code == (0 if verb in WITHOUT else 2), ran.err
    assert not list(tmp_path.rglob("*.sqlite"))


def test_what_is_kept_in_memory_is_said_to_be_gone(kgen: Kgen) -> None:
    ran = kgen("tune", *GELU, "--db", ":memory:")
    assert ran.code == 0
    assert "stored in memory (gone when this process ends)" in ran.err
