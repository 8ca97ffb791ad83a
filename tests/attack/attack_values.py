"""What the attack gives: texts that break programs, and the command lines made of them and of the command tree itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from kgen.cli.main import app

#: No output may hold it: it is the password of every URL below.
SECRET = "opensesame"
#: What a text would do if it reached a shell, an evaluator or a template.
WITNESS = "witness"

#: For every argument and option, whatever it means.
TEXTS = (
    # nothing, and what looks like options and folders
    "", " ", "-", ".", "..", "/", "-1", "-x",
    # files and folders: of nobody, beneath a file, too long, a folder, what nothing is read from nor written to
    "~nosuch/x", "~", "plain.txt", "plain.txt/below", "folder", "missing/x", "n" * 300, "n/" * 3000, "socket",
    "plain.txt:f", "mine.py:f", "mine.py/x.py:f", "~nosuch/x.py:f", "n" * 300 + ".py:f", "nul\0.py:f", "escape.py:f",
    # numbers
    "0", "1", "9" * 5000, "9" * 5000 + "s", "1" + "0" * 400 + "s", "1e999", "nan", "inf", "0x10", "٣", "1_000", "8x" * 2000 + "8",
    f"gelu={'9' * 5000}", f"Elementwise(pack={'9' * 5000})", "Elementwise(pack=1, pack=1)", "Elementwise(", "M=1,M=2",
    # characters
    "nul\0byte", "two\nlines", "\r", "\x1b[31mred\x1b]0;title\x07", "\x9b31m", "\x7f\b\b", "\u202eright", "naïve", "🙂", "\udcff",
    # what would be code
    f"$(touch {WITNESS})", f"`touch {WITNESS}`", f"; touch {WITNESS}", f"| touch {WITNESS}",
    f"__import__('os').system('touch {WITNESS}')",
    "' OR 1=1 --", '"; DROP TABLE trial; --', "%s%n", "{0}", "{{ 7 * 7 }}", "{% raw %}", "[red]x[/red]", "[/]",
    # databases
    f"postgresql://user:{SECRET}@", f"postgresql://user:{SECRET}@127.0.0.1:port/x", f"postgresql://user:{SECRET}@127.0.0.1:1/x",
    f"nosuch://user:{SECRET}@host/x", f"user:{SECRET}@host://", f"sqlite://user:{SECRET}@host/x", "sqlite://", "sqlite:///", "://",
    "sqlite:///plain.txt", "sqlite:///plain.txt/below", "sqlite:///folder", "sqlite:///" + "n" * 300, "sqlite:///nul\0",
    f"http://user:{SECRET}@[::1", "file:x?mode=memory&uri=true", "sqlite:///x.sqlite?nosuch=1", "sqlite:///x.sqlite?timeout=abc",
    ":memory:", "corrupt.sqlite", "sqlite:///corrupt.sqlite?mode=ro",
    # GPUs and architectures
    "sm_999", "sm_81", "sm_", "sm_" + "9" * 5000, "auto", "H200", "A100", "99",
)  # fmt: skip

#: What stands for an argument that is required and not attacked, by its name.
_VALID = {"op": ["gelu"], "file": ["pack.json"], "out": ["--out", "out"]}
#: Options that make a command cheap where they are not attacked.
_CHEAP = {"shape": ["--shape", "8"], "budget": ["--budget", "1"], "sample": ["--sample", "2"]}


def verbs(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every verb of the command line with its parameters' descriptions, from the command tree."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, (*path, name))
        else:
            yield (*path, name), command


def is_argument(parameter: Any) -> bool:
    return not hasattr(parameter, "is_flag")


def takes_text(parameter: Any) -> bool:
    return is_argument(parameter) or not parameter.is_flag


def line(path: tuple[str, ...], command: Any, given: dict[str, str]) -> list[str]:
    """The words of a command with these texts for these parameters, and what it needs besides."""
    words, arguments = list(path), []
    for parameter in command.params:
        text = given.get(parameter.name)
        if text is None:
            there = _VALID.get(parameter.name, ["x"]) if parameter.required else _CHEAP.get(parameter.name, [])
            (arguments if is_argument(parameter) else words).extend(there)
        elif is_argument(parameter):
            arguments.append(text)
        else:
            words += [parameter.opts[0], text]
    return [*words, "--", *arguments] if arguments else words
