"""main: the `kgen` command, its verbs and what becomes of errors.

Every error that kgen raises on purpose, and every misuse of the command line, is one line on stderr and exit code 2. Verbs
import what they need when they run, so that `kgen --help` is there at once.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kgen.cli import bench, db, doctor, explain, export, fit, show, source, space, tune, verify
from kgen.cli import list as list_
from kgen.cli.output import ReaderGone, one_line, visible_streams
from kgen.dsl.errors import KgenError

OK, FAILED, MISUSED, BROKEN, INTERRUPTED = 0, 1, 2, 3, 130

_HELP = """Generates CUDA kernels for operators written in Python, tunes them and exports them.

\b
  kgen tune hgemm --gpu auto        find the fastest config for this GPU
  kgen source hgemm --shape 4096x4096x4096
  kgen export hgemm -o out/         the kernel as CUDA C++ of your own
  kgen bench hgemm --vs cublas,torch
"""
_EPILOG = """\b
Results go to stdout, all else to stderr. Exit codes:
    0  done
    1  a check failed: verify, explain, doctor, db check
    2  bad usage or an error, told in one line on stderr
    3  a fault of kgen itself, told with its traceback
  130  interrupted by Ctrl-C; what was done by then is kept
"""

#: Click's base of the errors of usage. It is reached from here since typer brings a Click of its own from 0.20 or so on.
_ClickError: Any = typer.BadParameter.__mro__[2]


class Kgen(TyperGroup):
    """The group of all verbs; its `main` turns errors into a line and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            sys.exit(self._run(*args, **{**kwargs, "standalone_mode": False}))

    def _run(self, *args: Any, **kwargs: Any) -> int:
        try:
            _check_folder()
            _check_words(kwargs.get("args") or ())
            with visible_streams():
                return self._told(*args, **kwargs)
        except KgenError as error:
            _abandon(sys.stdout)
            return _complain(str(error))
        except ReaderGone:
            _abandon(sys.stdout)
            return OK

    def _told(self, *args: Any, **kwargs: Any) -> int:
        try:
            return super().main(*args, **kwargs) or OK
        except KgenError as error:
            return _complain(str(error))
        except OSError as error:  # the machine's, wherever it arose: a full disk, a folder that vanished
            what = f"{error.filename}: " if error.filename else ""
            return _complain(f"{what}{error.strerror or error}; check the disk, the folders and their permissions")
        except _ClickError as error:
            command = error.ctx.command_path if error.ctx else "kgen"
            return _complain(f"{error.format_message().rstrip('.')} (see {command} --help)")
        except (KeyboardInterrupt, typer.Abort):
            print("kgen: interrupted", file=sys.stderr)
            return INTERRUPTED


def _check_folder() -> None:
    try:
        os.getcwd()
    except OSError as error:
        raise KgenError(f"the current folder cannot be used: {error.strerror}; change to another") from error


def _check_words(words: Sequence[str]) -> None:
    for word in words:
        if "\0" in word:
            raise KgenError(f"malformed argument {word!r}: it has a NUL character; leave that out")


def _abandon(stream: Any) -> None:
    """What is still to be written to a stream goes nowhere, so that the end of the process does not fail on it."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _complain(message: str) -> int:
    print(f"kgen: error: {one_line(message)}", file=sys.stderr)
    return MISUSED


def _show_warning(message: Warning | str, *place: Any, **more: Any) -> None:
    print(f"kgen: warning: {one_line(str(message))}", file=sys.stderr)


app = typer.Typer(
    cls=Kgen,
    help=_HELP,
    epilog=_EPILOG,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
for _verb in (tune, list_, show, space, explain, source, export, bench, verify, fit):
    app.command(_verb.__name__.rsplit(".", 1)[1], **getattr(_verb, "SETTINGS", {}))(_verb.run)
app.add_typer(db.app, name="db")
app.command("doctor")(doctor.run)


def _print_version(wanted: bool) -> None:
    if wanted:
        import kgen

        print(f"kgen {kgen.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """The entry point of the `kgen` command."""
    # A file must not get the number of a standard stream that is closed: what others write there would end up in it.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        app(prog_name="kgen")
    except Exception:
        traceback.print_exc()
        sys.exit(BROKEN)
