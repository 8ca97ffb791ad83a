"""Runs a command in this process and says what is wrong with how it took what it was given."""

from __future__ import annotations

import os
import re
from pathlib import Path

from attack_values import WITNESS
from typer.testing import CliRunner

from kgen.cli.main import app

#: What exits with 1, having told on stdout which check failed.
_CHECKS = ("verify", "explain", "doctor", "db check")


def _listing(folder: Path) -> set[str]:
    return {os.path.join(where, name) for where, _, files in os.walk(folder) for name in files}


def faults(words: list[str], folder: Path) -> list[str]:
    """What is wrong with how a command takes these words; empty when all is well."""
    before = _listing(folder)
    ran = CliRunner().invoke(app, words, prog_name="kgen")
    told, found = ran.stdout + ran.stderr, []
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        return [f"raised {ran.exception!r}"]
    if ran.exit_code not in (0, 2, 130) and not (
        ran.exit_code == 1 and " ".join(words).startswith(_CHECKS) and ran.stdout
    ):
        found.append(f"exit code {ran.exit_code}")
    if ran.exit_code == 2:
        *notes, last, end = ran.stderr.split("\n")
        if not last.startswith("kgen: error: ") or end or not all(n.startswith("kgen: ") for n in notes):
            found.append(f"no single line of error: {ran.stderr!r}")
        if ran.stdout:
            found.append(f"an error, and results on stdout: {ran.stdout[:80]!r}")
        if _listing(folder) != before:
            found.append(f"an error, and files written: {_listing(folder) ^ before}")
    if re.search(r"[^\n\t -\x7e\xa0-\U0010ffff]|[\u202a-\u202e\u2066-\u2069\ud800-\udfff]", told):
        found.append(f"raw control characters: {told[-200:]!r}")
    if (folder / WITNESS).exists():
        found.append("it was run as code")
    return found
