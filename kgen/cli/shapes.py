"""Shapes: the problems that `--shapes` names: a file of them, a suite, a list, or a range of sizes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kgen.cli import problems, ranges
from kgen.dsl.errors import ArgumentError

if TYPE_CHECKING:
    from kgen.dsl.problem import Problem
    from kgen.runtime.operator import KernelOperator

T = TypeVar("T")
#: What a line of a file may say behind its shapes.
_WORDS = ("layout", "transposed")
#: The most problems that one export is made for: each may be a kernel of its own, that nvcc has to compile.
_MOST = 1024


def select(
    operator: KernelOperator, text: str, dtype: str | None, transposed: str | None, layout: str | None
) -> list[Problem]:
    """The problems of `--shapes`, in order, each once.

    A FILE has shapes on every line, and `layout=TN` or `transposed=a` behind them where it differs from the options; `#` begins
    a comment. Shapes are a suite's name, sizes such as 1024x1024x1024,4096x4096x4096, or named ones such as M=1..8192,N=64, of
    which ranges stand for a ladder of sizes. Raises ArgumentError for anything else, with the line it is on.
    """
    found: dict[str, Problem] = {}
    for where, shapes, words in _lines(text):
        try:
            for problem in problems.select(
                operator,
                _few(_shapes(operator, shapes)),
                None,
                dtype,
                words.get("transposed", None if "layout" in words else transposed),
                words.get("layout", None if "transposed" in words else layout),
            ):
                found.setdefault(problem.key, problem)
        except ArgumentError as error:
            raise ArgumentError(f"{where}{error}") from error
    if not found:
        raise ArgumentError(f"{text} has no shapes; expected one a line, such as 4096x4096x4096")
    return _few(found.values())


def _few(items: Iterable[T]) -> list[T]:
    """The items, if they are no more than one export may have."""
    found = [*itertools.islice(items, _MOST + 1)]
    if len(found) > _MOST:
        raise ArgumentError(f"--shapes names more than {_MOST} problems; expected at most as many")
    return found


def _lines(text: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Where, the shapes, and the words behind them: of each line of a file, or of the text itself."""
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, ValueError) as error:
        raise ArgumentError(f"cannot read {path}: {error}; expected a file with a shape a line") from error
    if content is None:
        yield "", text.strip(), {}
        return
    for number, line in enumerate(content.splitlines(), 1):
        shapes, *words = line.partition("#")[0].split() or [""]
        given = dict(word.partition("=")[::2] for word in words)
        if not shapes and not words:
            continue
        if not set(given) <= set(_WORDS) or not all(given.values()):
            raise ArgumentError(
                f"{path}:{number}: malformed line {line.strip()!r}; expected shapes, then layout=TN or transposed=a"
            )
        yield f"{path}:{number}: ", shapes, given


def _shapes(operator: KernelOperator, text: str) -> Iterator[str]:
    """Shapes as `--shape` takes them."""
    from kgen.dsl.family import suites_of

    suites = suites_of(operator.definition)
    if text in suites:
        yield from map(problems.shape_text, suites[text])
    elif "=" in text:
        yield from _named(text)
    elif re.fullmatch(r"[0-9x,]+", text):
        yield from text.split(",")
    else:
        raise ArgumentError(
            f"{text!r} is neither a file nor a suite ({', '.join(suites)}) nor shapes; expected for example "
            "4096x4096x4096,1024x1024x1024 or M=1..8192,N=4096,K=4096"
        )


def _named(text: str) -> Iterator[str]:
    """Every combination of the ladders of a shape's ranges."""
    if not ranges.is_range(text):
        yield text
        return
    found = ranges.Range.parse(text)
    yield from map(found.shape, itertools.product(*(span.ladder() for span in found.spans.values())))
