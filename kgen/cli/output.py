"""Output: results on stdout as tables or JSON, all else on stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from kgen.dsl.errors import ArgumentError

if TYPE_CHECKING:
    from kgen.dsl.problem import Problem
    from kgen.dsl.schedule import Schedule
    from kgen.dsl.target import Target
    from kgen.tuning_db import TrialRecord

#: Columns of a table that goes to a file or a pipe: so many that no cell is broken.
_WIDE = 2000
#: A longer word in a message is cut: it was given, and tells no more.
_LONGEST_WORD = 1000


def visible(text: str) -> str:
    """The text with everything that is no printable character as an escape, so that none controls or reorders a terminal.

    Names in packs, databases, files and paths are others' text. Newlines and tabs stay.
    """
    if text.isprintable():
        return text
    kept = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return "".join(kept)


def one_line(text: str) -> str:
    """A message on one line, with no word of thousands of characters."""
    return visible(" ".join(re.sub(rf"\S{{{_LONGEST_WORD},}}", _cut, text).split()))


def _cut(word: re.Match[str]) -> str:
    return f"{word[0][: _LONGEST_WORD // 10]}...({len(word[0])} characters)"


class ReaderGone(Exception):
    """Who reads stdout has stopped, as `head` does when it has enough. No OSError: Click would exit with 1."""


class _Visible:
    """A standard stream to which everything is written as `visible`, in characters that its encoding has.

    Where stdout cannot be written an ArgumentError says so: its reader would take half a result for the whole. What cannot be
    written to stderr is lost.
    """

    def __init__(self, stream: TextIO, required: bool) -> None:
        self.raw, self._required = stream, required

    def write(self, text: str) -> int:
        encoding = self.raw.encoding or "utf-8"
        self._try(self.raw.write, visible(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        self._try(self.raw.flush)

    def _try(self, function: Any, *arguments: Any) -> None:
        try:
            function(*arguments)
        except OSError as error:
            if self._required and isinstance(error, BrokenPipeError):
                raise ReaderGone from error
            if self._required:
                raise ArgumentError(
                    f"cannot write to standard output: {error.strerror or error}; redirect it elsewhere"
                ) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def visible_streams() -> Iterator[None]:
    """Within it all that is printed is `visible`. ArgumentError where stdout is closed."""
    if sys.stdout is None:
        raise ArgumentError("standard output is closed; give > /dev/null where the result is not wanted")
    streams: Any = _Visible(sys.stdout, True), _Visible(sys.stderr, False)
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        yield
        sys.stdout.flush()


def raw(stream: Any) -> Any:
    """The stream itself, for what may control the terminal: tables and bars, whose texts are `visible` each."""
    return getattr(stream, "raw", stream)


def note(text: str) -> None:
    """Tells the user something that is no result."""
    print(f"kgen: {one_line(text)}", file=sys.stderr, flush=True)


def print_json(data: Any) -> None:
    """One JSON value on stdout."""
    # JSON has no need to escape the one control character above the printable ones.
    print(json.dumps(data, indent=2, allow_nan=False, default=_plain).replace("\x7f", "\\u007f"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; on a terminal cells are folded to its width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    out = raw(sys.stdout) if terminal else sys.stdout
    console = Console(file=out, width=None if terminal else _WIDE)
    table = Table(*header, box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().split("\n")).strip("\n"), file=out)


def format_time(seconds: float) -> str:
    """A time with four digits, in the unit that suits it."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds:.4g} s"


def config_told(config: Schedule, problem: Problem, target: Target, whole: bool = False) -> str:
    """A config by what differs from the default of the problem: `WgmmaGemm BM=128 stages=5 (else as the default)`.

    Where the default is of another schedule, from this schedule's own. `whole`: the Python that makes it.
    """
    from kgen.dsl.errors import ConfigError
    from kgen.dsl.family import normalised
    from kgen.dsl.schedule import default_of
    from kgen.runtime import dispatch

    name = type(config).__name__
    if whole:
        return repr(config)
    try:
        base, of = dispatch.default(problem, target).config, "the default"
        if type(base) is not type(config):
            base, of = (
                default_of(type(config), normalised(problem), target),
                f"{name}'s default",
            )
    except ConfigError:  # none is valid: there is nothing to compare with
        return repr(config)
    changed = [f"{field}={value}" for field, value in config.values.items() if value != base.values[field]]
    return f"{' '.join([name, *changed])} (else as {of})" if changed else f"{name} ({of})"


def trial_time(trial: TrialRecord) -> str:
    """The time of a trial with the half width of its interval; "modelled" where it was not measured; "-" without one."""
    if trial.seconds is not None and trial.lower is not None and trial.upper is not None:
        return f"{format_time(trial.seconds)} ±{50 * (trial.upper - trial.lower) / trial.seconds:.1f}%"
    return "-" if trial.modelled_seconds is None else f"{format_time(trial.modelled_seconds)} modelled"


def trial_json(trial: TrialRecord) -> dict[str, Any]:
    """A trial for JSON: its config as text, and of its times only the measured or only the modelled."""
    absent = ("seconds", "lower", "upper", "samples") if trial.seconds is None else ("modelled_seconds",)
    values = {name: value for name, value in vars(trial).items() if name not in absent}
    return {**values, "config": trial.config.text}


def plain(record: Any) -> dict[str, Any]:
    """A dataclass as a dictionary."""
    return asdict(record)


def write_text(path: Path, text: str) -> None:
    """Writes a file, whole; ArgumentError where that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # a name with NUL is a ValueError
        told = getattr(error, "strerror", None) or error
        raise ArgumentError(f"cannot write {path}: {told}; name another file") from error
