"""Files that are damaged and runs that are killed: kgen heals or says what is wrong, and never crashes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from attack_runs import faults
from hypothesis import given
from hypothesis import strategies as st

from kgen import DatabaseError
from kgen.codegen.settings import cache_dir
from kgen.dsl.target import TARGETS
from kgen.tuner.records import gpu_facts
from kgen.tuning_db import import_pack, open_store
from kgen.tuning_db.packs import SHIPPED, read_pack

Damage = Callable[[bytes, random.Random], bytes]


def _flipped(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]


def _overwritten(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + bytes(chance.randrange(256) for _ in range(64)) + data[place + 64 :]


DAMAGE: dict[str, Damage] = {
    "empty": lambda data, chance: b"",
    "truncated": lambda data, chance: data[: chance.randrange(len(data))],
    "a bit flipped": _flipped,
    "overwritten": _overwritten,
    "zeros": lambda data, chance: bytes(len(data)),
    "of another kind": lambda data, chance: b'{"neither": ["this", 1e999]}',
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with all that comes with kgen for one GPU."""
    path = tmp_path_factory.mktemp("whole") / "tuning.sqlite"
    with open_store(path) as store:
        import_pack(store, gpu_facts(TARGETS["H200"]), next(SHIPPED.glob("*h200*.json")))
    return path.read_bytes()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_database_is_an_error_or_works(damage: str, database: bytes, folder: Path) -> None:
    for seed in range(2):
        (folder / "damaged.sqlite").write_bytes(DAMAGE[damage](database, random.Random(seed)))
        for verb in (
            "db stats",
            "db check",
            "db best --json",
            "show hgemm",
            "source hgemm --shape 64x64x64 --gpu H200",
        ):
            assert not faults([*verb.split(), "--db", "damaged.sqlite"], folder), (verb, seed)


@pytest.mark.parametrize("table", ["trials", "best", "problems", "configs", "gpus", "toolchains"])
def test_a_database_with_wrong_values_is_an_error_or_works(table: str, database: bytes, folder: Path) -> None:
    chance = random.Random(table)
    for value in (None, "x\x1b[31m", b"\xff", 10**18, '{"search": 5}'):
        path = folder / "wrong.sqlite"
        path.write_bytes(database)
        with sqlite3.connect(path) as connection:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if not row[5]]
            for column in chance.sample(columns, min(2, len(columns))):
                try:
                    connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
                except sqlite3.IntegrityError:
                    continue
        connection.close()
        for verb in (
            "db stats",
            "db check",
            "db best",
            "show hgemm --json",
            "source hgemm --shape 64x64x64 --gpu H200",
        ):
            assert not faults([*verb.split(), "--db", "wrong.sqlite"], folder), (verb, value)


@given(st.sampled_from(sorted(DAMAGE)), st.randoms(use_true_random=False))
def test_a_damaged_pack_is_refused_or_read(folder: Path, damage: str, chance: random.Random) -> None:
    whole = next(SHIPPED.glob("*h200*.json")).read_bytes()
    path = folder / "pack.json"
    path.write_bytes(DAMAGE[damage](whole, chance))
    with suppress(DatabaseError):
        read_pack(path)


def _called(cache: Path) -> str:
    """What an operator computes on the emulator in another process, with this cache folder."""
    program = "import kgen, torch; print(kgen.relu(torch.tensor([-1.0, 2.0])).tolist())"
    environment = {**os.environ, "KGEN_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_damaged_builds_of_the_emulator_heal(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    _called(cache_dir())  # what takes long to build is there
    shutil.copytree(  # but not what other processes are building now
        cache_dir() / "emulator", cache / "emulator", ignore=shutil.ignore_patterns("*-checked*", ".build-*")
    )
    files = [f for f in (cache / "emulator").rglob("*") if f.is_file() and f.suffix in (".so", ".gch", ".pch")]
    assert len(files) >= 3
    for i, file in enumerate(sorted(files)):
        file.write_bytes(DAMAGE[("truncated", "empty")[i % 2]](file.read_bytes(), random.Random(i)))
    assert _called(cache) == "[0.0, 2.0]"


def test_a_killed_run_loses_nothing_and_is_gone_on_with(folder: Path) -> None:
    # Where there is a GPU the last round stores the times of the best once more: here each config has one trial.
    environment = {**os.environ, "KGEN_DATABASE": str(folder / "tuning.sqlite"), "CUDA_VISIBLE_DEVICES": ""}
    command = [
        sys.executable,
        "-c",
        "from kgen.cli.main import main; main()",
        "tune",
        "relu",
        "--shape",
        "4096",
        "--gpu",
        "H200",
    ]
    trials = 0
    for seconds in (1.5, 3.0):
        run = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(seconds)
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        if (folder / "tuning.sqlite").exists():
            assert not faults(["db", "check"], folder)
            with sqlite3.connect(folder / "tuning.sqlite") as connection:
                tables = [
                    name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name = 'trials'")
                ]
                now = connection.execute("SELECT count(*) FROM trials").fetchone()[0] if tables else 0
            connection.close()
            assert now >= trials
            trials = now
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(folder / "tuning.sqlite") as connection:
        twice = connection.execute("SELECT count(*) - count(DISTINCT config_id) FROM trials").fetchone()
    connection.close()
    assert twice == (0,)
