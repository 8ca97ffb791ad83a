"""Where the attack takes place: a folder with things to stumble over, no GPU, and a fixed seed for what is drawn at random."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kgen.gpu import driver

_ANYWHERE = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
settings.register_profile("fixed", derandomize=True, max_examples=15, **_ANYWHERE)
settings.register_profile("thorough", max_examples=5000, **_ANYWHERE)


def pytest_pycollect_makemodule(parent: pytest.Collector) -> None:
    """The same few examples each time, or, by --thorough, many new ones: to be known before the tests are defined."""
    settings.load_profile("thorough" if parent.config.getoption("thorough") else "fixed")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder and the user's home, without a tuning database; kgen finds no GPU."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "plain.txt").write_text("nothing of kgen's")
    (home / "folder").mkdir()
    (home / "folder" / "keep.txt").write_text("mine")
    (home / "corrupt.sqlite").write_text("neither rows nor columns, and long enough to have a header. " * 20)
    (home / "mine.py").write_text("import kgen\n")
    (home / "escape.py").write_text("raise ValueError('\\x1b[31mred\\nline \\udcff')\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("KGEN_DATABASE", str(home / "tuning.sqlite"))
    monkeypatch.setattr(driver, "device_count", lambda: 0)
    monkeypatch.chdir(home)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    return home
