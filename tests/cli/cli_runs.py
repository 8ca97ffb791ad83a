"""What a command of the tests came to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from kgen.cli.main import app


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Kgen = Callable[..., Ran]


def invoke(*arguments: str) -> Ran:
    """Runs a command in this process."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, prog_name="kgen")
    return Ran(done.exit_code, done.stdout, done.stderr)
