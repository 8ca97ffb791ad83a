"""Runs `kgen` in this process, with a tuning database of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import Kgen, Ran
from typer.testing import CliRunner

from kgen.cli.main import app


@pytest.fixture
def kgen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kgen:
    """`kgen("list", "--json")`: unexpected exceptions are the test's."""
    monkeypatch.setenv("KGEN_DATABASE", str(tmp_path / "tuning.sqlite"))

    def run(*arguments: str) -> Ran:
        done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        return Ran(done.exit_code, done.stdout, done.stderr)

    return run


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
