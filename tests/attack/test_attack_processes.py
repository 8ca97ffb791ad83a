"""kgen as a process whose surroundings fail it: streams that are full, closed or narrow, a folder that is gone, files that
cannot be loaded. Exit code 2 and one line where it cannot go on, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_KGEN = f"{sys.executable} -c 'from kgen.cli.main import main; main()'"
#: A result on stdout that fits no buffer, one that does, and one made without any verb.
_PRINTING = ("list --json", "db path", "--help")


def run(words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`kgen` by a shell, which redirects its streams."""
    return subprocess.run(
        ["sh", "-c", words.replace("kgen ", f"{_KGEN} ", 1)],
        capture_output=True,
        cwd=folder,
        env={**os.environ, **environment},
    )


def complained(done: subprocess.CompletedProcess[bytes], *told: str) -> None:
    """It exited with 2 and one line that says all this."""
    error = done.stderr.decode()
    assert done.returncode == 2, error
    assert error.startswith("kgen: error: ")
    assert error.count("\n") == 1
    for words in told:
        assert words in error


@pytest.mark.parametrize("words", _PRINTING)
def test_a_full_stdout_is_an_error(words: str, folder: Path) -> None:
    complained(run(f"kgen {words} > /dev/full", folder), "standard output", "No space left on device")


def test_a_closed_stdout_is_an_error_and_no_file_takes_its_number(folder: Path) -> None:
    complained(run("kgen list >&-", folder), "standard output is closed")
    complained(run("kgen db stats >&- <&-", folder), "standard output is closed")


def test_stderr_may_be_full_or_closed(folder: Path) -> None:
    for stream in ("2> /dev/full", "2>&-"):
        done = run(f"kgen db path {stream}", folder)
        assert done.returncode == 0
        assert done.stdout.decode().strip() == str(folder / "tuning.sqlite")
        assert run(f"kgen tun {stream}", folder).returncode == 2


def test_a_reader_that_has_enough_is_no_error(folder: Path) -> None:
    done = run("(kgen list --json; echo code $? >&2) | head -n 1", folder)
    assert done.stdout == b"{\n"
    assert done.stderr == b"code 0\n"


def test_a_narrow_encoding_gets_escapes(folder: Path) -> None:
    done = run("kgen show nosuch\N{ROCKET} --db n\N{LATIN SMALL LETTER E WITH ACUTE}", folder, PYTHONIOENCODING="ascii")
    complained(done, "nosuch\\U0001f680")
    done = run("kgen db path --db n\N{LATIN SMALL LETTER E WITH ACUTE}", folder, PYTHONIOENCODING="ascii")
    assert done.stdout == b"n\\xe9\n"


def test_a_current_folder_that_is_gone_is_an_error(folder: Path) -> None:
    gone = "mkdir gone; cd gone; rmdir ../gone; "
    complained(run(f"{gone} kgen source gelu --shape 8", folder), "current folder")
    # Without torch, which itself needs one.
    program = "import kgen; print(len(kgen.relu.source(leading=8)) > 0)"
    done = run(f'{gone} {sys.executable} -c "{program}"', folder)
    assert done.stdout == b"True\n", done.stderr


def test_a_fault_of_kgen_has_an_exit_code_of_its_own(folder: Path) -> None:
    program = "import kgen.cli.db as db; db.shown_database = 0; from kgen.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "db", "path", "--json"], capture_output=True, cwd=folder)
    assert done.returncode == 3
    assert b"Traceback" in done.stderr
