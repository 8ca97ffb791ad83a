"""Tests neither read nor write what is the user's: their cache folder and their databases are their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kgen.codegen import settings

ROOT = Path(__file__).parents[1]
PLACES = "from kgen.codegen import settings; print(settings.cache_dir(), settings.database())"
INNER = f"""
import subprocess, sys
from pathlib import Path
from kgen.codegen import settings

def test_inner():
    here = [str(settings.cache_dir()), settings.database()]
    child = subprocess.run([sys.executable, "-c", {PLACES!r}], capture_output=True, text=True, check=True).stdout.split()
    assert here == child
    assert not Path(settings.database()).exists()
    Path(__file__).with_name("seen").write_text(" ".join(here))
"""


def test_a_run_of_tests_has_a_cache_and_a_database_of_its_own(tmp_path: Path) -> None:
    """With a tuned database in the user's cache folder, as `kgen tune` leaves it, and one named by KGEN_DATABASE."""
    user = tmp_path / "user"
    user.mkdir()
    for name in ("tuning.sqlite", "named.sqlite"):
        (user / name).write_text("not to be read")
    inner = tmp_path / "test_inner.py"
    inner.write_text(INNER)
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "KGEN"))}
    outside |= {"KGEN_CACHE_DIR": str(user), "KGEN_DATABASE": str(user / "named.sqlite")}
    options = ["-p", "no:cacheprovider", "-n", "0", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    command = [sys.executable, "-m", "pytest", *options, "-p", "conftest", str(inner)]
    done = subprocess.run(
        command, env={**outside, "PYTHONPATH": str(ROOT / "tests")}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cache, database = (tmp_path / "seen").read_text().split()
    assert Path(cache) == user / "tests"
    assert user not in Path(database).parents


def test_what_a_test_stores_no_other_test_finds() -> None:
    assert not Path(settings.database()).exists()
    Path(settings.database()).write_text("of this test alone")


def test_what_another_test_stored_is_not_found() -> None:
    test_what_a_test_stores_no_other_test_finds()
