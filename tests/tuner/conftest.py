"""A problem, a store, a target and a cubin cache for the tests of the tuner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tuner_samples import problem_of

from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.gpu.cache import CubinCache
from kgen.gpu.target import resolve
from kgen.tuning_db import Store, open_store


@pytest.fixture
def target() -> Target:
    return resolve("H200")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "tuning.sqlite") as opened:
        yield opened


@pytest.fixture(scope="session")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> CubinCache:
    return CubinCache(tmp_path_factory.mktemp("cubins") / "private")


@pytest.fixture
def gelu() -> Problem:
    return problem_of("gelu", {"...": (2**20,)})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker.log"
