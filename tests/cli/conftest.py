"""Runs `kgen` in this process, with a tuning database of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import Kgen, invoke

from kgen.gpu import driver


@pytest.fixture
def kgen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kgen:
    """`kgen("list", "--json")`, as if there were no GPU; unexpected exceptions are the test's."""
    monkeypatch.setenv("KGEN_DATABASE", str(tmp_path / "tuning.sqlite"))
    monkeypatch.setattr(driver, "device_count", lambda: 0)

    return invoke


USER_FILE = '''\
"""Operators of a user's own."""

import kgen
from kgen import Tensor, dims, f16, f32

M, N, K = dims("M N K")


@kgen.operator
def scaled(x: Tensor[f32, M, N], scale: float = 2.0) -> Tensor[f32, M, N]:
    """scale * x."""
    return x * scale


@kgen.operator
def mixed(a: Tensor[f16, M, K], b: Tensor[f16, K, N], c: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    """a @ b + c."""
    return a @ b + c


number = 3
'''


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(USER_FILE)
    return path
