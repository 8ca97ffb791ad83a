"""What all tests share: their cache and database, golden files, and the cases that tests run both here and on a GPU."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer import testing

from kgen.codegen.cache_folder import TEMPORARY
from kgen.codegen.settings import cache_dir
from kgen.emulator.build import Cache

# Nothing of the user's is read or written, by child processes neither. The cache folder is the tests' own, inside of the
# user's, and stays: what it holds is found by content and digest, and the emulator takes minutes to build all kernels anew.
# The database is new, and there is none until a test makes it; what one test stores would be another's beginning.
if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker has what the first process set
    _SCRATCH = tempfile.TemporaryDirectory(prefix="kgen-tests-")
    os.environ["KGEN_CACHE_DIR"] = str(cache_dir().absolute() / "tests")
    os.environ["KGEN_DATABASE"] = str(Path(_SCRATCH.name) / "tuning.sqlite")
    # torch's Inductor has a folder for all tests of a run, and tries no instruction set of this CPU by compiling a file for each,
    # nor precompiles its headers, for one kernel: each takes as long as the tests' graphs do.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(_SCRATCH.name) / "inductor")
    os.environ |= {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
    # JAX would take three quarters of a GPU's memory, of which all workers have their tensors.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    # Each of pytest's workers has a core; threads of torch on all cores in each of them would wait for each other.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")

sys.path += [str(Path(__file__).parent / folder) for folder in ("templates", "export", "promises")]

# All verbs are made of their functions once, not for each of the thousands of commands that are run in this process.
testing._get_command = functools.cache(testing._get_command)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept-goldens", action="store_true", help="write what the golden tests got over the golden files"
    )
    parser.addoption(
        "--thorough", action="store_true", help="tests/attack: every text for every option, and many more random ones"
    )


def pytest_collection_finish() -> None:
    """The collector of garbage need not go over what stays to the end: thousands of tests and their modules.

    Nor at every 700 objects over what tests make, most of which stays in a cache: that was a tenth of Python's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50)


@pytest.fixture(autouse=True)
def database_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test's default database is its own, for its child processes too; it is not there at first."""
    monkeypatch.setenv("KGEN_DATABASE", str(tmp_path_factory.getbasetemp() / f"tuning-{next(_tests)}.sqlite"))


_tests = itertools.count()


@pytest.fixture(scope="session")
def begun_cache(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes a cache folder that is new but for the emulator's runtime and preludes, which take ten seconds to build."""

    def make() -> Path:
        folder, there = tmp_path_factory.mktemp("cache"), Cache()
        own = Cache(folder).folder
        there.runtime()
        for file in there.folder.glob("runtime.so*"):
            shutil.copy2(file, own)
        for prelude in map(there.prelude, (True, False)):
            shutil.copytree(prelude.parent, own / prelude.parent.name, ignore=shutil.ignore_patterns(f"{TEMPORARY}*"))
        return folder

    return make


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text is, to the letter, that of the file in goldens/ beside the test."""
    folder = request.path.parent / "goldens"

    def check(name: str, text: str) -> None:
        file = folder / name
        if request.config.getoption("accept_goldens"):
            file.write_text(text, encoding="utf-8")
        assert file.is_file(), f"no golden file {file.name}; look at the text, then accept it with --accept-goldens"
        assert text == file.read_text(encoding="utf-8"), (
            f"{file.name} differs; accept with --accept-goldens if it should"
        )

    return check
