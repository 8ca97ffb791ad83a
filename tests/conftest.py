"""What all tests share: the golden files, and the folders with the cases that tests run both here and on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parent / folder) for folder in ("templates", "export", "promises")]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept-goldens", action="store_true", help="write what the golden tests got over the golden files"
    )


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
