"""Sample values and stores. KGEN_TEST_DATABASE_URL adds a database (it must be empty) to those every test runs on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from kgen.tuning_db import ConfigText, GpuFacts, ProblemKey, Store, Toolchain, TrialRecord, open_store

URLS = ["file", "memory", *filter(None, [os.environ.get("KGEN_TEST_DATABASE_URL")])]


@pytest.fixture
def gpu() -> GpuFacts:
    return GpuFacts("NVIDIA H200", "sm_90a", 132, 50 << 20, 700, "570.1")


@pytest.fixture
def toolchain() -> Toolchain:
    return Toolchain("13.5.1", "0.1.0", "ab" * 8)


@pytest.fixture
def problem() -> Callable[..., ProblemKey]:
    def make(M: int = 64, N: int = 64, operator: str = "hgemm", digest: str = "cd" * 32) -> ProblemKey:
        return ProblemKey(operator, digest, f"M={M} N={N} f16 NN a16", "gemm", {"M": M, "N": N})

    return make


@pytest.fixture
def trial() -> Callable[..., TrialRecord]:
    def make(BM: int = 64, **changes: Any) -> TrialRecord:
        config = ConfigText("MmaGemm", 1, f"MmaGemm(BM={BM}, swizzle='xor')", f"{BM:016x}")
        if changes.get("status", "ok") == "ok" and changes.get("origin", "measured") == "measured":
            changes = {"seconds": 2e-5, "lower": 1.9e-5, "upper": 2.1e-5, "samples": 40, **changes}
        return TrialRecord(**{"config": config, "status": "ok", "origin": "measured", **changes})

    return make


@pytest.fixture(params=URLS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = {"file": str(tmp_path / "tuning.sqlite"), "memory": "sqlite://"}.get(request.param, request.param)
    with open_store(url) as opened:
        yield opened
        if request.param not in ("file", "memory"):
            with opened.engine.begin() as connection:
                for table in ("buckets", "best", "deferred", "trials", "configs", "problems", "toolchains", "gpus"):
                    connection.execute(text(f"DELETE FROM {table}"))
